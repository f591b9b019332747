// plugin/runtime/gradient_reduction.h
//
// How gradients of a stage are summed over the ranks that hold it: a strategy. Started per stage in the order of the
// program's REDUCE_GRAD, finished before the optimizer reads.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "plugin/runtime/gradients.h"
#include "plugin/runtime/transport.h"

namespace dualpipe {

class GradientReduction {
 public:
  virtual ~GradientReduction() = default;
  // The stage's gradients of this step are final on this rank. Never blocks on a peer.
  virtual void start(int stage, Gradients& gradients) = 0;
  // Afterwards the step's gradients are sums. Blocks. What a failed wait leaves stays alive, and is not waited for
  // again.
  virtual void finish(Gradients& gradients) = 0;
};

// Nothing to sum.
std::unique_ptr<GradientReduction> no_reduction();

// Mirrors {r, P-1-r}: the two exchange their gradients, one message per stage with a tensor per dtype, and both add
// lower rank's first, so that copies stay equal to the bit. A parameter that got a gradient on neither side keeps an
// undefined one; on one side only, the other counts as zero. `gradients` sets earlier steps aside. Several stages may
// be under way. A sparse gradient is refused with ScheduleError before anything of its stage moves.
std::unique_ptr<GradientReduction> mirrored_reduction(std::shared_ptr<Transport> transport, int mirror);

// Parameters that another rank holds too without being a mirror (the two copies of a tied embedding under 1F1B), by
// that rank: their indices.
using TiedParameters = std::map<int, std::vector<std::size_t>>;

// Beside `rest`: one exchange with each rank that shares parameters, once all stages that use them are done on this
// rank. `of_sums`: what is exchanged is what `rest` made of them, so it starts where that has finished.
std::unique_ptr<GradientReduction> tied_reduction(std::shared_ptr<Transport> transport, TiedParameters tied,
                                                  std::unique_ptr<GradientReduction> rest, bool of_sums = false);

// Collective over all ranks. Throws ScheduleError on every rank where a name is on more than two, or with two shapes or
// dtypes of the gradient.
TiedParameters find_tied(Transport& transport, std::optional<int> mirror,
                         const std::vector<StageParameter>& parameters);

// Collective over all ranks that hold a part of the model. Throws ScheduleError on every rank where copies of a
// parameter (of the same part of it) differ, by the sum and the norm of their values, in double: what starts unequal
// stays unequal.
void check_copies(Collectives& ranks, const std::vector<StageParameter>& parameters);

// Collective over all ranks, each with its mirror. Throws ScheduleError on every rank where two mirrors do not train
// the same parameters (name, stage, shape, dtype of the gradient): their messages would not fit.
void check_mirrors(Transport& transport, int mirror, const Gradients& gradients);

}  // namespace dualpipe
