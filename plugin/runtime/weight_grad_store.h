// plugin/runtime/weight_grad_store.h
//
// Weight-gradient work that a zero-bubble backward put off, by (stage, micro-batch, phase).
//
// While an I runs, layers that know how to split put closures in; the executor seals the group, adds what the split
// backward left to do, and runs it in the scheduled W. Each executor owns one store; there is no global one: a layer
// finds the store of the executor that runs its forward by current() and keeps the pointer for its backward, which may
// run on another thread. The store outlives every graph that was built under it.
#pragma once

#include <compare>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace dualpipe {

class WeightGradStore {
 public:
  struct Key {
    int stage = 0;
    int micro_batch = 0;
    int phase = 0;  // Of a stage that runs phase by phase (plugin/runtime/phase.h).

    friend auto operator<=>(const Key&, const Key&) = default;
  };

  // True between begin() and seal(): put() instead of computing a weight gradient now.
  bool splitting() const { return splitting_; }
  void begin();
  // `bytes` is what the closure keeps alive. Outside begin()/seal() it is a broken invariant.
  void put(std::function<void()> work, std::size_t bytes);
  // How many closures have been put since construction: the split backward sees by it which node split itself.
  std::size_t put_count() const { return put_count_; }
  void seal(Key key);
  // Adds to a sealed (or new, empty) group.
  void add(Key key, std::function<void()> work, std::size_t bytes);
  // Runs one sealed group in the order of putting and frees what its closures held, also when one throws. An empty
  // group is a no-op; a key that was never sealed throws ScheduleError.
  void run(Key key);
  // Drops everything, also what a backward that threw has put so far.
  void clear();

  bool empty() const { return groups_.empty(); }
  std::size_t pending_bytes() const { return pending_bytes_; }
  std::string describe() const;  // "stage 0: micro-batches 2, 3 (1024 bytes)", for messages.

  // The store of the executor that is running a forward on this thread, or null.
  static WeightGradStore* current();
  // Makes a store current for its lifetime, then the previous one again.
  class Scope {
   public:
    explicit Scope(WeightGradStore& store);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    WeightGradStore* previous_;
  };

 private:
  struct Work {
    std::function<void()> run;
    std::size_t bytes;
  };
  bool splitting_ = false;
  std::size_t put_count_ = 0;
  std::size_t pending_bytes_ = 0;
  std::vector<Work> open_;
  std::map<Key, std::vector<Work>> groups_;
};

}  // namespace dualpipe
