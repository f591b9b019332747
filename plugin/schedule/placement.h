// plugin/schedule/placement.h
//
// Where stages live: which stages a rank holds, which rank runs (stage, micro-batch), who a rank's neighbours and
// mirror are, where inputs enter and where the loss is computed.
//
//   loop           stage s on rank s % P, C stages per rank      1f1b, zb1p (C=1), interleaved_1f1b (C=2 by default)
//   vee            2R stages, rank r holds r and 2R-1-r          dualpipev
//   bidirectional  P stages, rank r holds r and P-1-r; micro-batches 0..M/2-1 travel from rank 0 to rank P-1,
//                  M/2..M-1 from rank P-1 to rank 0              dualpipe
#pragma once

#include <optional>
#include <vector>

namespace dualpipe {

class Placement {
 public:
  static Placement loop(int ranks, int chunks_per_rank = 1);
  static Placement vee(int ranks);
  // `ranks` is even; `num_microbatches` counts both directions and is even.
  static Placement bidirectional(int ranks, int num_microbatches);
  // Any one-directional mapping, as a CSV file may give it: rank_of_stage[s] in 0..ranks-1. Throws ScheduleError where
  // a value is out of range or a rank holds no stage.
  static Placement custom(int ranks, std::vector<int> rank_of_stage);

  int ranks() const { return ranks_; }
  int stages() const { return stages_; }
  bool is_bidirectional() const { return directions_ == 2; }

  // The direction in which a micro-batch travels: 0, or 1 for the upper half of a bidirectional placement.
  int direction(int micro_batch) const { return directions_ == 2 && micro_batch >= split_ ? 1 : 0; }
  int rank_of(int stage, int micro_batch) const { return table_[direction(micro_batch) * stages_ + stage]; }

  // The stages of a rank in module order, which is the order in which Pipeline takes its modules: ascending for loop
  // and custom; r, then 2R-1-r for vee; r, then P-1-r for bidirectional, as in the reference.
  std::vector<int> stages_of(int rank) const;
  // The ranks that hold a stage, ascending: one, or two mirrors.
  std::vector<int> ranks_of(int stage) const;
  // The other rank that holds all of this rank's stages, if any.
  std::optional<int> mirror_of(int rank) const;

  // Where micro-batch k enters (the rank of stage 0) and where its loss is computed (the rank of the last stage).
  int input_rank(int micro_batch) const { return rank_of(0, micro_batch); }
  int loss_rank(int micro_batch) const { return rank_of(stages_ - 1, micro_batch); }

  // The same mapping, shape and split.
  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  Placement(int ranks, int stages, int directions, int split, std::vector<int> table);

  int ranks_;
  int stages_;
  int directions_;          // 1, or 2 for bidirectional.
  int split_;               // First micro-batch of direction 1; 0 where there is one direction.
  std::vector<int> table_;  // rank of (direction, stage), direction-major.
};

}  // namespace dualpipe
