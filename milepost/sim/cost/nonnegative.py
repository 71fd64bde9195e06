"""Least squares with coefficients that must not be negative: times only add up.

The active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["nonnegative_least_squares"]

Vector = npt.NDArray[np.float64]

_TOLERANCE = 1e-10


def nonnegative_least_squares(matrix: Vector, target: Vector) -> Vector:
    """The x >= 0 of the least |matrix @ x - target|.

    Args:
        matrix: [points, features], finite.
        target: [points], finite.

    Returns:
        [features]; a feature that is zero at all points gets 0.
    """
    # Columns of length 1 make one tolerance fit features that differ by orders of magnitude.
    lengths = np.linalg.norm(matrix, axis=0)
    used = lengths > 0
    scaled = matrix[:, used] / lengths[used]
    result = np.zeros(matrix.shape[1])
    result[used] = _solve(scaled, target) / lengths[used]
    return result


def _solve(matrix: Vector, target: Vector) -> Vector:
    num_features = matrix.shape[1]
    solution = np.zeros(num_features)
    free = np.zeros(num_features, dtype=bool)
    stuck = np.zeros(num_features, dtype=bool)
    limit = _TOLERANCE * max(float(np.linalg.norm(target)), 1e-300)
    for _ in range(10 * num_features):
        gradient = matrix.T @ (target - matrix @ solution)
        gradient[free | stuck] = -np.inf
        if gradient.max(initial=-np.inf) <= limit:
            break
        entering = int(gradient.argmax())
        free[entering] = True
        _descend(matrix, target, solution, free)
        # Within the numbers' precision some can't leave zero; they are tried again once others have moved.
        stuck = np.zeros_like(stuck) if free[entering] else stuck
        stuck[entering] = not free[entering]
    return solution


def _descend(matrix: Vector, target: Vector, solution: Vector, free: npt.NDArray[np.bool_]) -> None:
    """Move to the best point of the free features, freezing at zero those that would go below."""
    while free.any():
        wanted = np.zeros_like(solution)
        wanted[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
        below = free & (wanted <= 0)
        if not below.any():
            solution[:] = wanted
            return
        steps = solution[below] / (solution[below] - wanted[below] + 1e-300)
        solution += min(float(steps.min()), 1.0) * (wanted - solution)
        free &= solution > 1e-15 * max(float(solution.max(initial=0.0)), 1e-300)
        free &= ~(below & (solution <= 0))
        solution[~free] = 0.0
