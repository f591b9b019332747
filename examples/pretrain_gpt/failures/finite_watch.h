// examples/pretrain_gpt/failures/finite_watch.h
//
// Where NaN or infinity came from in a step of the trainer's own schedule: what enters and leaves a stage is looked at
// as it passes. First is by the flow of values, not by time: the lowest micro-batch, in it forward before backward, and
// along the flow.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace pretrain_gpt {

// In the order in which values cross a stage.
enum class Crossing : std::uint8_t { kInput, kOutput, kLoss, kOutputGradient, kInputGradient, kGradients };

struct Sighting {
  std::optional<std::int64_t> micro_batch;  // Nothing where all of them are summed.
  Crossing crossing = Crossing::kInput;
  int stage = 0;
  int rank = 0;      // Of the run.
  std::string name;  // Of a parameter; empty elsewhere.

  std::string describe() const;  // "rank 2, stage 2, micro-batch 3: the output"
  bool is_before(const Sighting& other) const;
};

std::string to_text(const std::optional<Sighting>& sighting);  // Without line breaks.
std::optional<Sighting> sighting_from_text(const std::string& text);

// No NaN and no infinity is in it; true of an undefined one.
bool is_finite(const at::Tensor& tensor);

class FiniteWatch {
 public:
  FiniteWatch(int stage, int rank) : stage_(stage), rank_(rank) {}

  void begin_step() { seen_.clear(); }
  void look(std::int64_t micro_batch, Crossing crossing, const at::Tensor& tensor);
  std::optional<Sighting> first() const;

 private:
  int stage_, rank_;
  std::vector<Sighting> seen_;  // All that was not finite.
};

}  // namespace pretrain_gpt
