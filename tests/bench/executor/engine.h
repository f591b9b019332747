// tests/bench/executor/engine.h
//
// The engine, asked by requests (tests/bench/support/serve.h):
//   {"schedule": "dualpipe", "microbatches": 20, "bytes": 1024, "pace_ms": [F, I, W, F&B], "delay_ms": 0, "steps": 1,
//    "at": ..}
// runs steps of one pipeline and answers what they took: {"began", "ended", "cpu_s", "actions", "operations",
// "messages", "peak_activations", "ideal_ms", "overshoot"}. Actions and operations are those of this process, over all
// steps; a pair is one action and two operations. Without "at" it is a rehearsal: one step that does not sleep.
// {"spans": true} adds what the last step ran when, "spans", and the Unix time that they count from, "spans_began".
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/bench/executor/sleeping_pipeline.h"

namespace dualpipe::bench {

// This process is one rank of a c10d group. Requests of one kind share a pipeline, so all ranks get the same ones.
class Engine {
 public:
  explicit Engine(std::shared_ptr<Transport> transport);
  nlohmann::json answer(const nlohmann::json& request);

 private:
  SleepingPipeline& pipeline_of(const nlohmann::json& request);

  std::shared_ptr<Transport> transport_;
  std::map<std::string, std::unique_ptr<SleepingPipeline>> pipelines_;
};

// All of the ranks are threads of this process; the request says how many: {"ranks": 8, ..}.
nlohmann::json answer_by_threads(const nlohmann::json& request);

}  // namespace dualpipe::bench
