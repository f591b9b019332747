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

}  // namespace pretrain_gpt
