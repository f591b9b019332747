#include "examples/pretrain_gpt/run_variables.h"

#include <optional>

namespace pretrain_gpt {
namespace {

constexpr const char* kSchedule = "DUALPIPE_SCHEDULE";
constexpr const char* kOutput = "DUALPIPE_OUTPUT";
constexpr const char* kRecordTimeline = "record_timeline";

void replace(ConfigReader& reader, const std::string& key, const std::string& variable,
             const std::optional<std::string>& value) {
  if (value) {
    reader.read(key, YAML::Node(*value), variable);
  }
}

}  // namespace

void read_run_variables(ConfigReader& reader, const GetVariable& get) {
  const std::optional<std::string> output = get(kOutput);
  replace(reader, "pipeline_schedule", kSchedule, get(kSchedule));
  replace(reader, "output_dir", kOutput, output);
  if (output && !reader.has(kRecordTimeline)) {
    reader.read(kRecordTimeline, YAML::Node("5"), kOutput);
  }
}

void leave_checkpoints_alone(Config& config, const GetVariable& get) {
  if (!get(kOutput)) {
    return;
  }
  config.save.clear();
  config.save_interval = 0;
  config.async_save = false;
  config.load.clear();
  config.ckpt_step.reset();
  config.finetune = false;
  config.exit_on_missing_checkpoint = false;
}

std::vector<std::pair<std::string, std::string>> run_variable_values(const GetVariable& get) {
  return {{kSchedule, get(kSchedule).value_or("")}, {kOutput, get(kOutput).value_or("")}};
}

std::string origin_of_schedule(const GetVariable& get) { return get(kSchedule) ? kSchedule : "pipeline_schedule"; }

std::string origin_of_output(const GetVariable& get) { return get(kOutput) ? kOutput : "output_dir"; }

}  // namespace pretrain_gpt
