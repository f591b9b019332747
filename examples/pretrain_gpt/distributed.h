// examples/pretrain_gpt/distributed.h
//
// How the processes of a run meet: a key-value store, and Gloo process groups made over it.
//
// Under torchrun its agent hosts the store; else rank 0 does, on MASTER_PORT, and has to leave last. One process alone
// needs no port. Keys stand under a prefix of the run's attempt, so that a restarted run does not see older ones.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/environment.h"
#include "examples/pretrain_gpt/failures/board.h"

namespace gloo::transport {
class Device;
}

namespace pretrain_gpt {

class Rendezvous {
 public:
  // Hosts the store where this rank has to, and connects to it, within `timeout`. Throws RunError(kStart) where the
  // port is taken, nobody answers, or what listens there gives no answer of a store in time: four seconds on
  // this machine's loopback, else up to thirty.
  Rendezvous(const Environment& environment, std::chrono::milliseconds timeout);

  // This thread's client. Its waits last as long as the timeout of the constructor.
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }

  // Another client, for another thread: a client's calls exclude each other, waits included.
  c10::intrusive_ptr<c10d::Store> connect(std::optional<std::chrono::milliseconds> timeout = {}) const;

  // The same, for those that watch. May outlive this.
  OpenBoard boards() const;

  // The other ranks need this process as long as they use the store.
  bool is_host() const { return is_host_; }

 private:
  Environment environment_;
  std::chrono::milliseconds timeout_;
  bool is_host_;
  c10::intrusive_ptr<c10d::Store> store_;
};

// Clients of a store that another rank or a launcher hosts.
OpenBoard boards_at(const Environment& environment);

// Whether Gloo's threads leave the processor to those that compute or send: as the environment says, else where the
// ranks of this machine, as far as their launcher says how many there are, outnumber the processors that are online.
bool gloo_threads_yield(const Environment& environment);

// Makes Gloo groups of some of the run's ranks. On one machine messages stay on the loopback interface; else they take
// the interface that GLOO_SOCKET_IFNAME names, or that of the host's name. All share one thread of Gloo.
class GroupMaker {
 public:
  GroupMaker(c10::intrusive_ptr<c10d::Store> store, const Environment& environment, std::chrono::milliseconds timeout);

  // Collective over `members`, of which this rank is one; they ascend. A rank makes no two groups of one name.
  c10::intrusive_ptr<c10d::ProcessGroup> make(const std::string& name, const std::vector<int>& members) const;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<gloo::transport::Device> device_;
};

// Of a wait for a message or a collective: behind the watch, which says whom the others wait for.
std::chrono::milliseconds transport_timeout(const Config& config);

// The texts of all ranks, by rank. Collective; `key` is used once per run.
std::vector<std::string> gather_texts(c10d::Store& store, const std::string& key, int rank, int world_size,
                                      const std::string& text);

}  // namespace pretrain_gpt
