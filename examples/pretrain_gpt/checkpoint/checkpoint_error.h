// examples/pretrain_gpt/checkpoint/checkpoint_error.h
//
// A checkpoint that cannot be written, found or loaded, with the file or folder as origin.
#pragma once

#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {

class CheckpointError : public UserError {
 public:
  using UserError::UserError;
};

// Its bytes are not those that were saved, whoever reads them: a file is missing, of another size or hash. No error of
// reading: what cannot be read now may be whole.
class DamagedCheckpoint : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

}  // namespace pretrain_gpt
