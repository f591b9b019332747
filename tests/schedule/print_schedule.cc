// print_schedule NAME P M [C|torch]: a built-in schedule in the text form, compute only with C chunks per rank, or as
// torch takes it. For compare_with_torch.py.
#include <cstdlib>
#include <iostream>
#include <string>

#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: print_schedule NAME P M [C|torch]\n";
    return 2;
  }
  const std::string last = argc > 4 ? argv[4] : "2";
  dualpipe::ScheduleSpec spec{std::atoi(argv[2]), std::atoi(argv[3])};
  if (last != "torch") {
    spec.virtual_pipeline_model_parallel_size = std::atoi(last.c_str());
  }
  const dualpipe::Schedule schedule = dualpipe::builtin_registry().make(argv[1], spec);
  if (last == "torch") {
    dualpipe::print_for_torch(std::cout, dualpipe::lower(schedule));
  } else {
    dualpipe::print_rows(std::cout, schedule.rows);
  }
  return 0;
}
