// tests/bench/peers/ping.h
//
// What a message itself costs: every rank sends to the next one in a ring and receives from the one before, over and
// over, {"kind": "ping", "exchanges": N, "bytes": B}. An exchange counts as one action.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <nlohmann/json.hpp>

namespace dualpipe::bench {

nlohmann::json answer_by_ping(c10d::Backend& gloo, const nlohmann::json& request);

}  // namespace dualpipe::bench
