#include "examples/pretrain_gpt/schedule_choice.h"

#include <sstream>
#include <string>

#include "examples/pretrain_gpt/agreement.h"
#include "examples/pretrain_gpt/line_file.h"

namespace pretrain_gpt {
namespace {

constexpr const char* kKey = "schedule_choice";

}  // namespace

ScheduleChoice choose_on_first_rank(const ScheduleEntry& entry, const Config& config, c10d::Store& store, int rank) {
  if (rank == 0) {
    ScheduleChoice choice = entry.choose(config, static_cast<int>(config.pipeline_size()));
    store.set(kKey, to_text({{choice.rows, choice.reason}}));
    return choice;
  }
  const std::vector<std::uint8_t> text = store.get(kKey);
  const auto [rows, reason] = from_text({text.begin(), text.end()}).at(0);
  return {rows, reason};
}

std::filesystem::path write_rows(const ScheduleChoice& choice, const std::filesystem::path& output_dir) {
  LineFile file(output_dir / "schedule.csv");
  std::istringstream rows(choice.rows);
  for (std::string row; std::getline(rows, row);) {
    file.append(row);
  }
  return file.path();
}

}  // namespace pretrain_gpt
