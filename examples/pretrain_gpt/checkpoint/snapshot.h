// examples/pretrain_gpt/checkpoint/snapshot.h
//
// A rank's pieces of a checkpoint as bytes: a copy in memory that stands still while training goes on, or tensor by
// tensor from where they are.
#pragma once

#include <cstddef>
#include <vector>

#include "examples/pretrain_gpt/checkpoint/held_state.h"
#include "examples/pretrain_gpt/checkpoint/safetensors_file.h"

namespace pretrain_gpt {

class Snapshot {
 public:
  // With `keeps_copy` memory for all pieces is taken, and touched, at once.
  Snapshot(std::vector<HeldPiece> pieces, bool keeps_copy);

  const std::vector<StoredTensor>& forms() const { return forms_; }

  // Copies all pieces; nothing without a copy.
  void take();

  // Of the last take(), or as the tensor is now. By index into forms().
  std::span<const std::byte> bytes(std::size_t index);

 private:
  std::vector<HeldPiece> pieces_;
  std::vector<StoredTensor> forms_;
  std::vector<std::size_t> places_;  // In copy_, each aligned.
  std::vector<std::byte> copy_;
  bool keeps_copy_;
  at::Tensor current_;  // What bytes() has given last.
};

}  // namespace pretrain_gpt
