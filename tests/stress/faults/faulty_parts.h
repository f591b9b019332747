// tests/stress/faults/faulty_parts.h
//
// A transport and a stage that count what a rank does, point by point, and at one of them go wrong. The points of a
// rank come in the order of its row, so a number names the same one in every run.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/runtime/stage_module.h"
#include "plugin/runtime/transport.h"
#include "tests/stress/faults/virtual_clock.h"

namespace dualpipe::stress {

enum class Fault { kThrow, kHang, kDrop, kRepeat, kWrongSize, kNan, kBadAlloc };
enum class Point { kForward, kBackward, kWeight, kSend, kReceive, kWait };

// A point that was passed. `which` is the stage of a compute point and the peer of a message.
struct Passed {
  Point point = Point::kWait;
  int which = -1;
  int channel = -1;  // Of a message.
};

inline constexpr Fault kFaults[] = {Fault::kThrow,     Fault::kHang, Fault::kDrop,    Fault::kRepeat,
                                    Fault::kWrongSize, Fault::kNan,  Fault::kBadAlloc};

std::string to_string(Fault fault);
std::string to_string(Point point);

// A message can be dropped or repeated, and a wait has nothing that could have a size or be NaN.
bool can_strike(Fault fault, Point point);

// Longer than any timeout of a test.
inline constexpr std::chrono::hours kHang{1};

// Of one rank, used by its thread.
class FaultPoints {
 public:
  explicit FaultPoints(std::shared_ptr<VirtualClock> clock) : clock_(std::move(clock)) {}

  void arm(std::size_t number, Fault fault);
  // Throws or hangs where that is the fault, and gives back another one for the caller to commit.
  std::optional<Fault> pass(const Passed& passed);

  const std::vector<Passed>& seen() const { return seen_; }
  bool has_struck() const { return armed_ && *armed_ < seen_.size(); }

 private:
  std::shared_ptr<VirtualClock> clock_;
  std::vector<Passed> seen_;
  std::optional<std::size_t> armed_;
  Fault fault_ = Fault::kThrow;
};

// Messages of every channel go by a point each; collectives pass.
std::shared_ptr<Transport> make_faulty(std::shared_ptr<Transport> transport, std::shared_ptr<FaultPoints> points);

// tanh(x W), of the width of W, which is the stage's own to begin with.
std::shared_ptr<StageModule> make_faulty_stage(int stage, std::int64_t width, std::shared_ptr<FaultPoints> points);

}  // namespace dualpipe::stress
