#pragma once

#include <span>

#include "fuzz/draws.h"

namespace dendrite::fuzz {

class World;

/// Something a program that searches may do. It draws its operands from what is live, does nothing
/// where there is nothing to do it with, brings the mirrors up to date, and throws a Violation when
/// the engine gives what it must not. World::run checks everything else afterwards.
struct Operation {
  const char* name;
  int weight;  // how often, next to the others
  void (*run)(World& world, Draws& draws);
};

/// All that there are (operations.cpp).
std::span<const Operation> operations();

}  // namespace dendrite::fuzz
