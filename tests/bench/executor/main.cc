// One rank of bench_executor, or with --threads all of them: answers requests until its input ends.
#include <ATen/Parallel.h>

#include <csignal>
#include <iostream>
#include <string_view>

#include "plugin/runtime/c10d_transport.h"
#include "tests/bench/executor/engine.h"
#include "tests/bench/support/meeting.h"
#include "tests/bench/support/serve.h"

namespace {

using namespace dualpipe;

int serve_rank() {
  const bench::Meeting meeting = bench::meet();
  int code = 0;
  {
    const auto group = bench::make_local_group(meeting);
    bench::Engine engine(make_c10d_transport(group));
    code = bench::serve([&](const nlohmann::json& request) { return engine.answer(request); });
  }
  bench::leave(meeting);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // A peer that leaves is an error to report, not the end of this process.
  at::set_num_threads(1);
  try {
    return argc > 1 && std::string_view(argv[1]) == "--threads" ? bench::serve(bench::answer_by_threads) : serve_rank();
  } catch (const std::exception& error) {
    std::cerr << "bench_executor_rank: " << error.what() << std::endl;
    return 1;
  }
}
