#include "examples/pretrain_gpt/measured_layers.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

using Json = nlohmann::json;

constexpr const char* kWriter = "'dualpipe profile' writes such a file";
constexpr int kDeepest = 8;  // Objects and lists in each other; the file needs 3. More would cost stack in messages.

Json parse(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!std::filesystem::is_regular_file(file) || !stream) {
    throw UserError(file.string(),
                    fmt::format("cost_file must be a file that can be read with balance: measured; {}", kWriter));
  }
  const auto watch_depth = [&file](int depth, Json::parse_event_t, Json&) {
    if (depth > kDeepest) {
      throw UserError(file.string(), fmt::format("cost_file must have at most {} objects and lists in each other, got "
                                                 "more; {}",
                                                 kDeepest, kWriter));
    }
    return true;
  };
  Json json = Json::parse(stream, watch_depth, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("format", Json()) != "dualpipe-cost" || json.value("version", Json()) != 1) {
    throw UserError(file.string(), fmt::format("cost_file must be JSON with \"format\": \"dualpipe-cost\" and "
                                               "\"version\": 1, got something else; {}",
                                               kWriter));
  }
  return json;
}

class LayerReader {
 public:
  LayerReader(const std::filesystem::path& file, const Json& json)
      : file_(file), layers_(json.value("layers", Json())) {
    if (!layers_.is_array()) {
      throw UserError(file_.string(),
                      "layers must be a list with balance: measured, got none; 'dualpipe profile "
                      "--config' writes one, --command only where the host tells its layers");
    }
  }

  LayerTimes read(std::int64_t num_layers) const {
    LayerTimes times;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const std::string name = name_of(i);
      if (name == "embedding" && i == 0) {
        times.embedding = time_of(i);
      } else if (name == "head" && i + 1 == layers_.size()) {
        times.head = time_of(i);
      } else {
        times.layers.push_back(time_of(i));
      }
    }
    if (static_cast<std::int64_t>(times.layers.size()) != num_layers) {
      throw UserError(file_.string(), fmt::format("layers must be num_layers = {} between embedding and head, got {}; "
                                                  "profile this model",
                                                  num_layers, times.layers.size()));
    }
    return times;
  }

 private:
  [[noreturn]] void refuse(std::size_t index, const std::string& rule) const {
    throw UserError(file_.string(), fmt::format("layers[{}]{}", index, rule));
  }

  std::string name_of(std::size_t index) const {
    const Json& layer = layers_[index];
    if (!layer.is_object() || !layer.value("name", Json()).is_string()) {
      refuse(index, " must be an object with a name, such as \"embedding\"");
    }
    return layer["name"];
  }

  double time_of(std::size_t index) const {
    double sum = 0;
    for (const char* key : {"forward", "backward_input", "backward_weight"}) {
      const Json value = layers_[index].value(key, Json());
      if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0) {
        refuse(index, fmt::format(".{} must be a finite number of at least 0, such as 1.5, got {}", key,
                                  value.is_null() ? "nothing" : value.dump()));
      }
      sum += value.get<double>();
    }
    return sum;
  }

  const std::filesystem::path& file_;
  const Json layers_;
};

}  // namespace

LayerTimes read_layer_times(const std::filesystem::path& file, std::int64_t num_layers) {
  return LayerReader(file, parse(file)).read(num_layers);
}

}  // namespace pretrain_gpt
