// Plans DualPipe for eight ranks and prints its first cells and its makespan.
#include <iostream>

#include "plugin/analysis/report.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"

int main() {
  const dualpipe::Schedule plan =
      dualpipe::builtin_registry().make("dualpipe", {.pipeline_model_parallel_size = 8, .num_microbatches = 20});
  const dualpipe::Row& row = plan.rows.front();
  std::cout << dualpipe::print_row({row.begin(), row.begin() + 3}) << "\n"
            << "makespan " << dualpipe::report(plan, {}).makespan << "\n";
}
