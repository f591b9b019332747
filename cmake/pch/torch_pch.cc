// cmake/pch/torch_pch.cc
//
// Gives the precompiled header's target a source.
