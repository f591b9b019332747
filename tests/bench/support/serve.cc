#include "tests/bench/support/serve.h"

#include <sys/prctl.h>

#include <chrono>
#include <ctime>
#include <exception>
#include <iostream>
#include <string>
#include <thread>

namespace dualpipe::bench {
namespace {

using Clock = std::chrono::steady_clock;

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

double steady_seconds() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

void sleep_until(double moment) {
  ::prctl(PR_SET_TIMERSLACK, 1UL);
  const auto since_epoch = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(moment));
  std::this_thread::sleep_until(Clock::time_point(since_epoch));
}

nlohmann::json timed(const nlohmann::json& request, const std::function<void()>& body) {
  sleep_until(request.at("at").get<double>());
  const double cpu = cpu_seconds();
  const double began = steady_seconds();
  body();
  return {{"began", began}, {"ended", steady_seconds()}, {"cpu_s", cpu_seconds() - cpu}};
}

int serve(const Handler& handler) {
  for (std::string line; std::getline(std::cin, line);) {
    try {
      const nlohmann::json request = nlohmann::json::parse(line);
      std::cout << (request.empty() ? request : handler(request)).dump() << std::endl;
    } catch (const std::exception& error) {
      std::cout << nlohmann::json{{"error", error.what()}}.dump() << std::endl;
      return 1;
    }
  }
  return 0;
}

}  // namespace dualpipe::bench
