// tests/stress/trials.h
//
// main() of a program that tries numbered cases, each made by chance from the seed and its number.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <string>

#include "tests/stress/row.h"

namespace dualpipe::stress {

struct TrialOptions {
  std::uint64_t seed = 1;
  std::uint64_t first = 0;
  std::uint64_t count = 100000;
};

// `Trials` is made from the options, has run(), and says in row() what came out. Returns the exit code.
template <typename Trials>
int run_trials(int argc, char** argv, const std::string& title) {
  CLI::App app(title);
  TrialOptions options;
  app.add_option("--seed", options.seed, "of all cases");
  app.add_option("--first", options.first, "number of the first case");
  app.add_option("--count", options.count, "cases");
  CLI11_PARSE(app, argc, argv);
  Trials trials(options);
  trials.run();
  const ResultRow row = trials.row();
  print(std::cout, row);
  return row.reached ? 0 : 1;
}

}  // namespace dualpipe::stress
