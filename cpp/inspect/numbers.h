// How the inspector's numbers are made of tensors and written: float64, nine significant digits.
#pragma once

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

namespace lockstep::inspect {

/// A tensor [N] as a list. What is not finite becomes null.
nlohmann::json numbers(const at::Tensor& x);
nlohmann::json number(double x);

/// What is told of the vectors of a sequence, x [T, D]: {mean, std, min, max, near_zero, l2}, a list per token each,
/// and `all`, the same over every element (its l2: the mean of the tokens'). std is the population's; near_zero the
/// share of elements below kNearZero times the token's root mean square.
nlohmann::json spread(const at::Tensor& x);
constexpr double kNearZero = 0.01;

/// What is told of values between 0 and 1, the finite ones: {mean, min, max, below_tenth, histogram}: counts of kBins
/// equal bins. Null where none is finite.
nlohmann::json shares(const at::Tensor& x);
constexpr int64_t kBins = 20;

/// x [T, D] and y [T, D] -> cosine of each token's two vectors [T]; 0 where one of them is zero.
at::Tensor cosines(const at::Tensor& x, const at::Tensor& y);

/// The `count` greatest of probabilities p [V], float64: [{id, p}]; of equal ones the smaller id first.
nlohmann::json most_probable(const at::Tensor& p, int64_t count);

}  // namespace lockstep::inspect
