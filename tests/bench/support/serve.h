// tests/bench/support/serve.h
//
// A rank that measures what it is told: requests are lines of JSON on its input, answers lines of JSON on its output,
// until the input ends; an empty request is answered by an empty one. Whoever asks gives all ranks the same moment to
// begin at, so that kinds of ranks take turns.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

namespace dualpipe::bench {

using Handler = std::function<nlohmann::json(const nlohmann::json& request)>;

// The exit code. A handler that throws is answered by {"error": ..} and ends it with 1.
int serve(const Handler& handler);

// Runs `body` at request["at"], in seconds of the machine's steady clock: {"began", "ended", "cpu_s"}, the last of all
// threads of this process.
nlohmann::json timed(const nlohmann::json& request, const std::function<void()>& body);

// Seconds of the steady clock, which the processes of a machine share.
double steady_seconds();
// Returns at that moment.
void sleep_until(double steady_seconds);

}  // namespace dualpipe::bench
