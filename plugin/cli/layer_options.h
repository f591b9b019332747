// plugin/cli/layer_options.h
//
// A chunk of transformer layers as a user describes it on the command line, and its phases.
#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "plugin/schedule/phase.h"

namespace dualpipe::cli {

struct LayerOptions {
  int layers = 4;
  int dense_layers = 0;
  std::string attention = "1,1,1";
  std::string mlp = "1,1,1";
  std::string all_to_all = "1";
  std::optional<std::string> split_sizes;
};

void add_layer_options(CLI::App& command, LayerOptions& options);

// Per layer attention, exchange of split sizes (where it has a cost), dispatch, mlp, combine, or attention and mlp of a
// dense layer. `origin` is the command's name. Throws ScheduleError naming the option.
Phases make_phases(const std::string& origin, const LayerOptions& options);

}  // namespace dualpipe::cli
