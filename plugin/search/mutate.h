// plugin/search/mutate.h
//
// A small random change of one rank's word. What it gives may break an order or a limit: check_word() and the
// evaluation say so. Changes never lose an F or a backward, and keep each I with a W.
#pragma once

#include "plugin/search/letter.h"
#include "plugin/search/random.h"

namespace dualpipe::search {

// Moves a letter, exchanges two, splits a B into I and W or joins them, makes a pair of an F and a backward or takes it
// apart, hands a half of a pair to a letter nearby, exchanges the lanes of two letters. False where the draw came to
// nothing; the word is then as it was.
bool mutate(Word& word, Random& random);

}  // namespace dualpipe::search
