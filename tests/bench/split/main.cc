// bench_split [--json]: I + W of a transformer layer beside its B, on one core.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>

#include "tests/bench/split/measure.h"

namespace dualpipe::bench {
namespace {

constexpr double kBound = 1.05;

bool reached(const SplitTimes& times) { return times.ratio <= kBound; }

void print_row(const char* name, const SplitTimes& times) {
  fmt::print("{:<12} B {:7.2f} ms   I {:7.2f} ms   W {:7.2f} ms   I+W {:7.2f} ms   {:.3f}x of B, at most {}x: {}\n",
             name, 1e3 * times.full, 1e3 * times.input, 1e3 * times.weight, 1e3 * times.split, times.ratio, kBound,
             reached(times) ? "reached" : "missed");
}

nlohmann::json to_json(const SplitTimes& times) {
  return {{"full_s", times.full}, {"input_s", times.input}, {"weight_s", times.weight}, {"split_s", times.split},
          {"ratio", times.ratio}, {"bound", kBound},        {"reached", reached(times)}};
}

int run(const SplitSize& size, bool json) {
  at::set_num_threads(1);
  const SplitTimes whole = measure_split(size, false);
  const SplitTimes phased = measure_split(size, true);
  if (json) {
    const nlohmann::json report{{"hidden", size.hidden},   {"tokens", size.tokens},   {"heads", size.heads},
                                {"repeats", size.repeats}, {"whole", to_json(whole)}, {"phased", to_json(phased)}};
    fmt::print("{}\n", report.dump(2));
  } else {
    fmt::print("A transformer layer, H={}, S={}, {} heads, float32, medians of {} repeats, CPU time:\n", size.hidden,
               size.tokens, size.heads, size.repeats);
    print_row("one graph", whole);
    print_row("two phases", phased);
  }
  return reached(whole) && reached(phased) ? 0 : 1;
}

}  // namespace
}  // namespace dualpipe::bench

int main(int argc, char** argv) {
  dualpipe::bench::SplitSize size;
  bool json = false;
  CLI::App app("What a split backward of a transformer layer costs over a full one; 0 where the bound holds.");
  app.add_flag("--json", json, "The figures as JSON");
  app.add_option("--hidden", size.hidden, "H")->check(CLI::PositiveNumber);
  app.add_option("--tokens", size.tokens, "S")->check(CLI::PositiveNumber);
  app.add_option("--heads", size.heads, "Must divide H")->check(CLI::PositiveNumber);
  app.add_option("--repeats", size.repeats, "Of each backward")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    if (size.hidden % size.heads != 0) throw CLI::ValidationError("--heads must divide --hidden");
    return dualpipe::bench::run(size, json);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_split: {}\n", error.what());
    return 2;
  }
}
