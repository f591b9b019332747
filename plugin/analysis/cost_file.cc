#include "plugin/analysis/cost_file.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "plugin/analysis/strict_json.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

using analysis::StrictObject;

constexpr int kDeepest = 8;  // Of objects and lists in each other; a file needs 3.
constexpr const char* kFormat = "dualpipe-cost";
constexpr int kVersion = 1;

CostFileStage read_stage(const StrictObject& object) {
  object.allow({"forward", "backward_input", "backward_weight", "overlapped", "all_to_all", "parameter_bytes",
                "gradient_bytes", "optimizer_bytes", "activation_bytes"});
  CostFileStage stage;
  stage.cost.forward = object.amount("forward");
  stage.cost.backward_input = object.amount("backward_input");
  stage.cost.backward_weight = object.amount("backward_weight");
  stage.cost.overlapped = object.optional_amount("overlapped")
                              .value_or(stage.cost.forward + stage.cost.backward_input + stage.cost.backward_weight);
  stage.all_to_all = object.optional_amount("all_to_all");
  stage.parameter_bytes = object.optional_amount("parameter_bytes");
  stage.gradient_bytes = object.optional_amount("gradient_bytes");
  stage.optimizer_bytes = object.optional_amount("optimizer_bytes");
  stage.activation_bytes = object.optional_amount("activation_bytes");
  return stage;
}

LayerCost read_layer(const StrictObject& object) {
  object.allow({"name", "forward", "backward_input", "backward_weight", "parameter_bytes"});
  return {object.text("name"), object.amount("forward"), object.amount("backward_input"),
          object.amount("backward_weight"), object.optional_amount("parameter_bytes")};
}

void check_head(const StrictObject& file) {
  file.allow({"format", "version", "unit", "source", "latency", "step_overhead", "stages", "layers"});
  file.require("format", kFormat);
  file.require("version", kVersion);
  file.require("unit", "ms");
}

CostFile read_file(const StrictObject& object, const std::string& name) {
  check_head(object);
  CostFile file;
  file.name = name;
  file.source = object.has("source") ? object.text("source") : "";
  file.latency = object.optional_amount("latency").value_or(0);
  file.step_overhead = object.optional_amount("step_overhead").value_or(0);
  for (const StrictObject& stage : object.objects("stages")) {
    file.stages.push_back(read_stage(stage));
  }
  if (file.stages.empty()) {
    throw ScheduleError(name, "stages must list at least one stage, got none; 'dualpipe profile' writes such a file");
  }
  if (object.has("layers")) {
    for (const StrictObject& layer : object.objects("layers")) {
      file.layers.push_back(read_layer(layer));
    }
  }
  return file;
}

using Json = nlohmann::ordered_json;

void put(Json& json, const char* key, const std::optional<double>& value) {
  if (value) {
    json[key] = *value;
  }
}

Json to_object(const CostFileStage& stage) {
  Json json{{"forward", stage.cost.forward},
            {"backward_input", stage.cost.backward_input},
            {"backward_weight", stage.cost.backward_weight},
            {"overlapped", stage.cost.overlapped}};
  put(json, "all_to_all", stage.all_to_all);
  put(json, "parameter_bytes", stage.parameter_bytes);
  put(json, "gradient_bytes", stage.gradient_bytes);
  put(json, "optimizer_bytes", stage.optimizer_bytes);
  put(json, "activation_bytes", stage.activation_bytes);
  return json;
}

Json to_object(const LayerCost& layer) {
  Json json{{"name", layer.name},
            {"forward", layer.forward},
            {"backward_input", layer.backward_input},
            {"backward_weight", layer.backward_weight}};
  put(json, "parameter_bytes", layer.parameter_bytes);
  return json;
}

// A line per entry, which is easier to read and to compare than either form of dump().
template <typename Entry>
std::string lines(const std::vector<Entry>& entries) {
  std::string text = "[";
  for (const Entry& entry : entries) {
    text += (text.size() > 1 ? ",\n  " : "\n  ") + to_object(entry).dump();
  }
  return text + "\n]";
}

}  // namespace

CostFile parse_cost_file(std::string_view json, const std::string& name) {
  const nlohmann::json parsed = analysis::parse_strict(json, name, kDeepest);
  return read_file(StrictObject(parsed, name, ""), name);
}

CostFile read_cost_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  if (!stream || !(text << stream.rdbuf())) {
    throw ScheduleError(path, "must be a cost file that can be read, as 'dualpipe profile -o " + path + "' writes it");
  }
  return parse_cost_file(text.str(), path);
}

std::string to_json(const CostFile& file) {
  Json head{{"format", kFormat},     {"version", kVersion},     {"unit", "ms"},
            {"source", file.source}, {"latency", file.latency}, {"step_overhead", file.step_overhead}};
  std::string text = head.dump();
  text.pop_back();
  text += ",\n\"stages\": " + lines(file.stages);
  if (!file.layers.empty()) {
    text += ",\n\"layers\": " + lines(file.layers);
  }
  return text + "}\n";
}

}  // namespace dualpipe
