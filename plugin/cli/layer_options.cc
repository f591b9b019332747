#include "plugin/cli/layer_options.h"

#include <fmt/core.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "plugin/schedule/error.h"

namespace dualpipe::cli {
namespace {

constexpr int kMostLayers = 1000;

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> items(1);
  for (const char letter : text) {
    if (letter == ',') {
      items.emplace_back();
    } else {
      items.back() += letter;
    }
  }
  return items;
}

// Nothing where it is no finite number of at least 0.
std::optional<double> parse_number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool whole = !text.empty() && end == text.c_str() + text.size();
  return whole && std::isfinite(value) && value >= 0 ? std::optional(value) : std::nullopt;
}

std::optional<std::vector<double>> parse_numbers(const std::string& text) {
  std::vector<double> numbers;
  for (const std::string& item : split(text)) {
    const std::optional<double> number = parse_number(item);
    if (!number) {
      return std::nullopt;
    }
    numbers.push_back(*number);
  }
  return numbers;
}

class LayerParser {
 public:
  LayerParser(std::string origin, const LayerOptions& options) : origin_(std::move(origin)) {
    check_counts(options);
    attention_ = parse_parts("--attention", options.attention);
    mlp_ = parse_parts("--mlp", options.mlp);
    parse_all_to_all(options.all_to_all);
    if (options.split_sizes) {
      split_sizes_ = parse_number(*options.split_sizes);
      require(split_sizes_.has_value(),
              fmt::format("--split-sizes must be a finite number of at least 0, such as 0.05, got '{}'",
                          *options.split_sizes));
    }
  }

  void add_layer(Phases& phases, int layer, bool dense) const {
    const std::string prefix = std::to_string(layer) + ".";
    phases.push_back(compute(prefix + "attention", attention_));
    if (!dense && split_sizes_) {
      phases.push_back({prefix + "split_sizes", PhaseKind::kCommunication, *split_sizes_, 0, 0, false});
    }
    if (!dense) {
      phases.push_back({prefix + "dispatch", PhaseKind::kCommunication, dispatch_, dispatch_, 0});
    }
    phases.push_back(compute(prefix + "mlp", mlp_));
    if (!dense) {
      phases.push_back({prefix + "combine", PhaseKind::kCommunication, combine_, combine_, 0});
    }
  }

 private:
  using Parts = std::vector<double>;

  void require(bool holds, const std::string& rule) const {
    if (!holds) {
      throw ScheduleError(origin_, rule);
    }
  }

  void check_counts(const LayerOptions& options) const {
    require(options.layers >= 1 && options.layers <= kMostLayers,
            fmt::format("--layers must be from 1 to {}, got {}", kMostLayers, options.layers));
    require(
        options.dense_layers >= 0 && options.dense_layers <= options.layers,
        fmt::format("--dense-layers must be from 0 to --layers = {}, got {}", options.layers, options.dense_layers));
  }

  Parts parse_parts(const std::string& name, const std::string& text) const {
    const std::optional<Parts> parts = parse_numbers(text);
    require(parts && parts->size() == 3,
            fmt::format("{} must be three finite numbers of at least 0 for F, I and W, such as 1,1,1, got '{}'", name,
                        text));
    return *parts;
  }

  void parse_all_to_all(const std::string& text) {
    const std::optional<Parts> parts = parse_numbers(text);
    require(parts && parts->size() <= 2,
            fmt::format("--all-to-all must be one finite number of at least 0, or two for dispatch and combine, such "
                        "as 0.9 or 0.5,1, got '{}'",
                        text));
    dispatch_ = parts->front();
    combine_ = parts->back();
  }

  static PhaseSpec compute(const std::string& name, const Parts& parts) {
    return {name, PhaseKind::kCompute, parts[0], parts[1], parts[2]};
  }

  std::string origin_;
  Parts attention_;
  Parts mlp_;
  double dispatch_ = 0;
  double combine_ = 0;
  std::optional<double> split_sizes_;
};

}  // namespace

void add_layer_options(CLI::App& command, LayerOptions& options) {
  command.add_option("--layers", options.layers, "Layers per chunk, those without experts included")
      ->capture_default_str();
  command.add_option("--dense-layers", options.dense_layers, "The first so many have no experts and no all-to-all")
      ->capture_default_str();
  command.add_option("--attention", options.attention, "Cost of attention with the router: F,I,W")
      ->capture_default_str();
  command.add_option("--mlp", options.mlp, "Cost of the experts, or of a dense layer's mlp: F,I,W")
      ->capture_default_str();
  command
      .add_option("--all-to-all", options.all_to_all, "Cost of a dispatch or combine, each way; or DISPATCH,COMBINE")
      ->capture_default_str();
  command.add_option("--split-sizes", options.split_sizes,
                     "Cost of the exchange of split sizes ahead of a dispatch; left out, there is none");
}

Phases make_phases(const std::string& origin, const LayerOptions& options) {
  const LayerParser parser(origin, options);
  Phases phases;
  for (int layer = 0; layer < options.layers; ++layer) {
    parser.add_layer(phases, layer, layer < options.dense_layers);
  }
  return phases;
}

}  // namespace dualpipe::cli
