// plugin/schedule/merge.h
//
// merge(): the forward phases of one micro-batch and the backward phases of another as one program for an overlapped
// pair, and the program as data that prints.
//
// Dependencies: a phase's F follows the F of the phase before it (the first follows the arrival of the inputs), an I
// the I of the phase after it (the last follows the arrival of the output gradients), a W its own I. Computes run one
// at a time in the order of the program. A communication is posted in the program right behind the last step that it
// needs and awaited right before the first step that needs it; communications of one rank run one after another, in
// the order of posting. Of two in a row (an exchange of split sizes, then the dispatch that needs them on the host) the
// second is posted right behind the wait for the first, at a boundary between two computes. The outputs are sent right
// behind the last F, the input gradients right behind the last I, before any W that is left. Where the last F or I is a
// communication that has not arrived yet, sending waits for a later boundary rather than computes for sending. The
// order is fixed by the phases alone, costs included, so expert-parallel peers that give the same phases post the same
// exchanges in the same order.
//
// Which compute comes next: each W right behind its I, and of the two chains the one that is less advanced by compute
// cost, the forward at a tie. For equal phases that is the order that DeepSeek-V3 published: MLP(I) MLP(W) MLP(F)
// ATTN(I) ATTN(W) ATTN(F), beside DISPATCH(F) DISPATCH(B) COMBINE(F) COMBINE(B). Where that order is not the fastest
// under the costs, a search over (F done, I done, W done) finds one that is: exactly, with the W in the order of their
// I, while no more than 200,000 partial orders stay in the race (faster_order.h), and the most promising of them
// beyond. The search leaves the slowdown out of account; what it found is taken where it is faster with the
// slowdown, too. Under any costs and slowdown the result takes no longer than in_sequence(), since the rank or its link
// always makes headway.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plugin/schedule/phase.h"

namespace dualpipe {

enum class PhasePart { kForward, kInput, kWeight };  // F, I (of communication: the way back), W.

enum class PairStepKind {
  kRun,            // Run a compute part.
  kPost,           // Start a communication.
  kWait,           // Await it.
  kTakeInputs,     // Await the forward's inputs.
  kTakeGradients,  // Await the gradients of the backward's outputs.
  kSendOutputs,    // The forward's outputs leave.
  kSendGradients,  // The backward's input gradients leave; over a link behind the outputs, wherever this stands.
};

struct PairStep {
  PairStepKind kind = PairStepKind::kRun;
  PhasePart part = PhasePart::kForward;  // Of kRun, kPost, kWait. F: of the forward's phases, else of the backward's.
  int phase = 0;                         // Of kRun, kPost, kWait: index into that side's phases.

  friend auto operator<=>(const PairStep&, const PairStep&) = default;
};

struct PairProgram {
  Phases forward;
  Phases backward;
  std::vector<PairStep> steps;
};

struct MergeOptions {
  // By how much a compute takes longer while a communication runs beside it (1: not at all).
  double slowdown = 1;
};

// Deterministic. Throws ScheduleError for a negative or non-finite cost, naming the phase, for an empty side and for a
// slowdown below 1.
PairProgram merge(const Phases& forward, const Phases& backward, const MergeOptions& options = {});

// All of F, then all of B (each W right behind its I), every communication awaited where it is posted: what a pair
// costs that overlaps nothing. Throws as merge() does.
PairProgram in_sequence(const Phases& forward, const Phases& backward);

// The steps at the beginning that take no time and need nothing of the forward: the backward's gradients are taken and
// its first exchange is posted. Empty where the program begins with anything else.
std::span<const PairStep> opening_of(const PairProgram& program);
// The steps behind the last exchange and the sending of the gradients: what is left of W and of the forward, and the
// sending of the outputs. In a row of pairs they may stand behind the next pair's opening, which they hide
// (plugin/runtime/overlap.h).
std::span<const PairStep> closing_of(const PairProgram& program);

// The parts of both sides, each once, none before what it needs, every post awaited: what is wrong, or "".
std::string why_invalid(const PairProgram& program);

// "2.mlp(I)"; the way back of a communication is "2.dispatch(B)". The phase must exist.
std::string name_of(const PairProgram& program, PhasePart part, int phase);
// "run 2.mlp(I)", "post 2.dispatch(B)", "wait 2.dispatch(B)", "take inputs", "send gradients", ...
std::string to_string(const PairProgram& program, const PairStep& step);

// A line per compute and, beside it, the communications that are posted before it and not awaited yet, in the order of
// the link; a line per hand-over to and from the neighbours. "(idle)" stands where a communication runs beside no
// compute at all. For a valid program; every line ends with '\n':
//
//   take gradients
//   take inputs
//   0.attention(F)  | 0.combine(B)
//   0.mlp(I)        | 0.dispatch(F)
//   0.mlp(W)        | 0.dispatch(F), 0.dispatch(B)
std::string print(const PairProgram& program);

}  // namespace dualpipe
