#include "plugin/runtime/agree.h"

#include <fmt/format.h>

#include <sstream>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr char kRefused = '!';

// One line per entry, "key=value"; values have no line breaks.
std::string encode(const Digest& digest) {
  std::string text;
  for (const auto& [key, value] : digest) text += key + '=' + value + '\n';
  return text;
}

void compare(const std::string& ours, const std::string& theirs, std::size_t rank) {
  std::istringstream first(ours);
  std::istringstream other(theirs);
  std::string a;
  std::string b;
  while (std::getline(first, a)) {
    std::getline(other, b);
    if (a == b) continue;
    const std::size_t split = a.find('=') + 1;
    throw ScheduleError("pipeline",
                        fmt::format("ranks disagree about {}: {} on rank 0, {} on rank {}", a.substr(0, split - 1),
                                    a.substr(split), b.size() >= split ? b.substr(split) : "nothing", rank));
  }
}

}  // namespace

void agree(Collectives& ranks, const Digest& digest, const std::optional<std::string>& error) {
  const std::vector<std::string> all = ranks.all_gather(error ? kRefused + *error : encode(digest));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty() || all[rank][0] != kRefused) continue;
    throw ScheduleError(fmt::format("rank {}", rank), all[rank].substr(1));
  }
  for (std::size_t rank = 1; rank < all.size(); ++rank) compare(all[0], all[rank], rank);
}

}  // namespace dualpipe
