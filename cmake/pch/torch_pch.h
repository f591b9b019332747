// cmake/pch/torch_pch.h
//
// The headers that cost most to read, precompiled once for all rooms that see LibTorch. A file still includes what it
// uses: this header is never named in a source.
#pragma once

#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
