// examples/pretrain_gpt/failures/lifeline.h
//
// One connection of every rank to rank 0, held open for the whole run. The kernel closes it when a process ends,
// however that happens, so a death is known at once; a process that is merely slow or stopped keeps its own. It also
// carries last words: what rank 0 knows of a failure reaches every rank before rank 0 leaves.
//
// Not thread-safe: one thread polls. Who can reach the port can connect; without a greeting of a rank of this run it is
// left out of account.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/sockets.h"

namespace pretrain_gpt {

struct LifelineNews {
  std::vector<int> lost;             // Ranks whose connection has closed without a farewell.
  std::optional<std::string> words;  // From rank 0.
  bool farewell = false;             // Rank 0 has said its own.
};

class Lifeline {
 public:
  virtual ~Lifeline() = default;
  // Adds what poll() has to wait for to `descriptors`.
  virtual void add_to(std::vector<int>& descriptors) const = 0;
  // What has happened since; does not wait.
  virtual LifelineNews news() = 0;
  // Last words to every rank that is connected; of rank 0 alone, nothing elsewhere.
  virtual void tell_all(const std::string& words) = 0;
  // From now on the other end's closing means nothing, and it will not take this one's for a death.
  virtual void say_farewell() = 0;
  // Whether every rank that lives can be told by tell_all().
  virtual bool reaches_all() const = 0;
};

// Of rank 0, which the others reach at `port()`. `loopback_only`: of a run on one machine.
class LifelineHub : public Lifeline {
 public:
  // `greeting` has to be known to connect. Throws std::system_error where no port is to be had.
  LifelineHub(int world_size, bool loopback_only, std::string greeting);

  int port() const;
  void add_to(std::vector<int>& descriptors) const override;
  LifelineNews news() override;
  void tell_all(const std::string& words) override;
  void say_farewell() override;
  bool reaches_all() const override { return static_cast<int>(ranks_.size() + ended_) == world_size_ - 1; }

 private:
  struct Guest {
    Descriptor socket;
    std::string said;
    std::chrono::steady_clock::time_point since;
  };
  void accept_guests();
  bool greet(Guest& guest);  // Whether the guest needs no more of it.
  void hear_guests();
  bool has_ended(int rank, Guest& line, LifelineNews& news);

  int world_size_;
  std::string greeting_;
  Descriptor listener_;
  std::vector<Guest> guests_;  // Not greeted yet.
  std::map<int, Guest> ranks_;
  std::size_t ended_ = 0;
  bool parting_ = false;
};

// Of the other ranks. Throws std::system_error where no address leads there within `timeout`.
std::unique_ptr<Lifeline> connect_lifeline(const std::vector<std::string>& hosts, int port, int rank,
                                           const std::string& greeting, std::chrono::milliseconds timeout);

}  // namespace pretrain_gpt
