#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include <csignal>

#include "tests/support/run_processes.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  at::set_num_threads(1);
  if (const auto exit_code = dualpipe::run_as_child()) {
    return *exit_code;
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
