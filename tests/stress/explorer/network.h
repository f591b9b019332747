// tests/stress/explorer/network.h
//
// Ranks as sequential processes that exchange messages, run until nobody can go on. Shares no code with plugin/: it
// knows neither schedules nor stages, only who sends, posts and takes which message in which order.
//
// Why one run proves all. A rank is sequential and what it does next depends on nothing but its own list: it never asks
// what is ready. Every condition that it waits for ("this message has arrived") is monotone: the counters behind it
// (sent, posted, taken) only grow, and a message that has arrived stays. So two ranks that can both move can move in
// either order and reach the same state (the diamond property of Kahn's networks, Kahn 1974): all maximal runs end in
// the same state, and whoever is stuck in one is stuck in all. One run to the point where nobody moves is therefore a
// proof for every interleaving and every delay, of progress as much as of deadlock. A step that takes two messages
// takes them in whichever order they come, which is a process of its own per message and changes nothing.
//
//   kTagged   asynchronous rendezvous with tags: a message arrives once it is sent and its receive is posted
//   kInOrder  per directed edge first in, first out, k slots: the first message that was sent and has not arrived meets
//             the first receive that was posted and has none; it arrives if fewer than k messages of the edge have
//             arrived and not been taken. If the two are of different messages, the edge never moves again.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace dualpipe::stress {

enum class Wires { kTagged, kInOrder };

struct Step {
  enum class Verb : std::uint8_t {
    kNothing,
    kSend,
    kPost,
    kArrived,  // Waits until the message has arrived; takes nothing.
    kTake,     // Waits for each of its messages and takes it.
  };
  Verb verb = Verb::kNothing;
  std::uint8_t count = 0;  // Of messages: 0 to 2.
  std::array<std::int32_t, 2> messages = {};
};

struct Network {
  struct Ends {
    int from = 0;
    int to = 0;
  };
  std::vector<std::vector<Step>> ranks;  // Each rank's steps, in its order.
  std::vector<Ends> ends;                // Of each message.
};

// The step of each rank that it cannot do, where it is stuck.
using Stuck = std::vector<std::optional<std::size_t>>;

class NetworkRun {
 public:
  // `network` outlives this. `slots` is read by kInOrder alone.
  NetworkRun(const Network& network, Wires wires, int slots);

  Stuck run();

 private:
  struct Edge {
    std::deque<std::int32_t> sent;
    std::deque<std::int32_t> posted;
    int held = 0;  // Arrived and not taken.
  };

  void run_rank(int rank);
  bool do_step(const Step& step);
  bool take_all(const Step& step);
  void announce(std::int32_t message, bool by_sender);
  void move(Edge& edge, const Network::Ends& ends);
  Edge& edge_of(std::int32_t message);
  void wake(int rank);

  const Network& network_;
  const Wires wires_;
  const int slots_;
  std::vector<Edge> edges_;  // By from * ranks + to.
  std::vector<char> sent_, posted_, arrived_, taken_;
  std::vector<std::size_t> next_;
  std::vector<char> is_awake_;
  std::deque<int> awake_;
};

bool all_end(const Network& network, Wires wires, int slots);

}  // namespace dualpipe::stress
