// tests/bench/overlap/ranks.h
//
// The processes of the benchmark: rank 2p+e is rank p of a pipeline and rank e of two expert-parallel ranks.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <string>

#include "tests/bench/overlap/expert_group.h"
#include "tests/bench/support/meeting.h"
#include "tests/bench/support/sleep.h"

namespace dualpipe::bench {

class Ranks {
 public:
  Ranks();
  ~Ranks();  // The store's host leaves last.

  int rank() const { return rank_; }
  int expert_rank() const { return rank_ % 2; }
  int pipeline_rank() const { return rank_ / 2; }
  int pipeline_size() const { return size_ / 2; }

  // Collective over this rank's expert pair, and over its pipeline.
  ExpertGroup make_experts() const;
  c10::intrusive_ptr<c10d::ProcessGroup> make_pipeline_group() const;

  // Collective over all ranks.
  void barrier();
  double value_of_rank0(double mine);
  // How long `body` takes from a moment that all ranks share.
  Milliseconds time(const std::function<void()>& body);

 private:
  explicit Ranks(const Meeting& meeting);
  std::string next_key() { return "meeting" + std::to_string(meetings_++); }

  int rank_;
  int size_;
  int meetings_ = 0;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace dualpipe::bench
