// One rank of bench_overlap, which starts it: prints what it measured as one line of JSON.
#include <CLI/CLI.hpp>
#include <csignal>
#include <iostream>

#include "tests/bench/overlap/measure.h"

namespace {

using namespace dualpipe::bench;

void run(const std::string& what, const Settings& settings, int num_microbatches) {
  Ranks ranks;
  const nlohmann::json result =
      what == "pair" ? measure_pair(settings, ranks) : measure_step(settings, num_microbatches, ranks);
  std::cout << result.dump() << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // A peer that leaves is an error to report, not the end of this process.
  CLI::App app("One rank of bench_overlap");
  std::string what;
  Settings settings;
  int num_microbatches = 16;
  app.add_option("what", what)->required()->check(CLI::IsMember({"pair", "step"}));
  app.add_option("--layers", settings.layers)->check(CLI::PositiveNumber);
  app.add_option("--compute-ms", settings.compute_ms)->check(CLI::PositiveNumber);
  app.add_option("--mbit", settings.megabits_per_second)->check(CLI::PositiveNumber);
  app.add_option("--repeats", settings.repeats)->check(CLI::PositiveNumber);
  app.add_option("--ratios", settings.ratios)->check(CLI::PositiveNumber);
  app.add_option("--microbatches", num_microbatches)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    run(what, settings, num_microbatches);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}
