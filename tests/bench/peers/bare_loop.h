// tests/bench/peers/bare_loop.h
//
// A schedule's messages and nothing else: no autograd, no shapes, no failure path. Floors for the engine, not peers.
//   early     receives are posted where lower() puts them, sends are never awaited within the step
//   waiting   before each compute what it needs is posted, together with what has been sent since, and all of it
//   awaited
// Asked by requests as the engine is (tests/bench/executor/engine.h), with {"kind": "early"|"waiting"}.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <nlohmann/json.hpp>

namespace dualpipe::bench {

nlohmann::json answer_by_bare_loop(c10d::Backend& gloo, const nlohmann::json& request);

}  // namespace dualpipe::bench
