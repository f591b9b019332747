// cmake/pch/torch_pch.h
//
// The headers that cost most to read, precompiled once for all rooms that see LibTorch. A file still includes what it
// uses: this header is never named in a source. <torch/torch.h> is left out, since what it leaves to instantiate at the
// end of every file costs more than reading it costs the few that want it.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/optimizer.h>
