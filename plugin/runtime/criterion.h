// plugin/runtime/criterion.h
//
// The loss of a micro-batch, and what it weighs in the global batch.
//
//   global loss = sum_k w_k * mean_k / sum_k w_k        (mean_k: what `loss` returns for micro-batch k)
//   global loss = sum_k sum_k        / sum_k w_k        (criteria that return a sum)
//
// over all micro-batches of a step, both ends of a bidirectional pipeline included, so that losses and gradients are
// those of the whole global batch under every schedule and for every number of micro-batches. Weights come from the
// labels alone, since the first backward needs their sum before the last forward has run.
#pragma once

#include <functional>
#include <type_traits>
#include <utility>

#include "plugin/runtime/tensor_list.h"

namespace dualpipe {

struct Criterion {
  using Loss = std::function<at::Tensor(const TensorList& outputs, const TensorList& labels)>;
  using Weight = std::function<double(const TensorList& labels)>;

  // `loss` returns the mean over the rows of the micro-batch, which weighs as many rows as dimension 0 of its first
  // defined label has (1 where there is none). A bare function or lambda converts to this. An empty function throws
  // ScheduleError.
  Criterion(Loss loss);  // NOLINT(google-explicit-constructor)
  template <typename F>
  requires(std::is_invocable_r_v<at::Tensor, F, const TensorList&, const TensorList&> &&
           !std::is_same_v<std::remove_cvref_t<F>, Loss>) Criterion(F&& loss)  // NOLINT(*-overload)
      : Criterion(Loss(std::forward<F>(loss))) {}                              // NOLINT(google-explicit-constructor)
  // `loss` returns a sum, `weight` what to divide it by (valid tokens, say).
  static Criterion sum(Loss loss, Weight weight);

  // Throws ScheduleError where `weight` gives something negative or not finite.
  double weight_of(const TensorList& labels) const;

  Loss loss;
  Weight weight;  // Empty: by rows.
  bool returns_sum = false;
};

}  // namespace dualpipe
