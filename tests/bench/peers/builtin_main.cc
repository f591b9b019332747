// One rank of the trainer's own 1F1B, of as many micro-batches as its argument says: answers requests until its input
// ends.
#include <ATen/Parallel.h>

#include <csignal>
#include <iostream>
#include <string>

#include "tests/bench/peers/builtin.h"
#include "tests/bench/support/serve.h"

namespace {

using namespace dualpipe::bench;

int serve_rank(int num_microbatches) {
  const Meeting meeting = meet();
  int code = 0;
  {
    Builtin builtin(meeting, num_microbatches);
    code = serve([&](const nlohmann::json& request) { return builtin.answer(request); });
  }
  leave(meeting);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // A peer that leaves is an error to report, not the end of this process.
  at::set_num_threads(1);
  try {
    if (argc != 2) throw std::invalid_argument("the number of micro-batches must be given, for example 20");
    return serve_rank(std::stoi(argv[1]));
  } catch (const std::exception& error) {
    std::cerr << "bench_builtin_rank: " << error.what() << std::endl;
    return 1;
  }
}
