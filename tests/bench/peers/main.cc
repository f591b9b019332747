// One rank of the bare loops: answers requests until its input ends. With the argument "yield" its Gloo threads yield,
// as the engine's do (gloo_threads.h).
#include <ATen/Parallel.h>

#include <csignal>
#include <iostream>
#include <string_view>

#include "plugin/runtime/gloo_threads.h"
#include "tests/bench/peers/bare_loop.h"
#include "tests/bench/peers/ping.h"
#include "tests/bench/support/meeting.h"
#include "tests/bench/support/serve.h"

namespace {

using namespace dualpipe::bench;

int serve_rank(bool yields) {
  const Meeting meeting = meet();
  int code = 0;
  {
    const auto group = make_local_group(meeting);
    if (yields) dualpipe::make_gloo_threads_yield(group->getSize());
    c10d::Backend& gloo = *group->getBackend(at::kCPU);
    code = serve([&](const nlohmann::json& request) {
      return request.at("kind") == "ping" ? answer_by_ping(gloo, request) : answer_by_bare_loop(gloo, request);
    });
  }
  leave(meeting);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // A peer that leaves is an error to report, not the end of this process.
  at::set_num_threads(1);
  try {
    return serve_rank(argc > 1 && std::string_view(argv[1]) == "yield");
  } catch (const std::exception& error) {
    std::cerr << "bench_bare_rank: " << error.what() << std::endl;
    return 1;
  }
}
