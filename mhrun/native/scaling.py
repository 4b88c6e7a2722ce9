"""Pieces of proposals and dynamics that run in scaled coordinates phi: theta = center + S phi.

S is diagonal (its diagonal is kept) or lower triangular (it and its inverse are kept). A piece is made of that of the
wrapped part, once for each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from mhrun.native.compiler import Piece, piece, piece_once


@piece
def _to_phi(args: Any, theta: Any, phi: Any) -> None:
    for d in range(len(theta)):
        phi[d] = (theta[d] - args[0][d]) / args[1][d]


@piece
def _to_theta(args: Any, phi: Any, theta: Any) -> None:
    for d in range(len(phi)):
        theta[d] = args[0][d] + args[1][d] * phi[d]


@piece
def _pull(args: Any, grad: Any, out: Any) -> None:
    for d in range(len(grad)):
        out[d] = args[1][d] * grad[d]


@piece
def _to_phi_dense(args: Any, theta: Any, phi: Any) -> None:
    for d in range(len(theta)):
        total = 0.0
        for k in range(d + 1):
            total += args[2][d, k] * (theta[k] - args[0][k])
        phi[d] = total


@piece
def _to_theta_dense(args: Any, phi: Any, theta: Any) -> None:
    for d in range(len(phi)):
        total = args[0][d]
        for k in range(d + 1):
            total += args[1][d, k] * phi[k]
        theta[d] = total


@piece
def _pull_dense(args: Any, grad: Any, out: Any) -> None:
    for d in range(len(grad)):
        total = 0.0
        for k in range(d, len(grad)):
            total += args[1][k, d] * grad[k]
        out[d] = total


@cache
def scaled_proposal(inner: Piece, dense: bool) -> Piece:
    """Return the piece ``propose`` of a proposal whose own one is `inner`; ``args[3]`` are its arguments."""
    to_phi, to_theta = (_to_phi_dense, _to_theta_dense) if dense else (_to_phi, _to_theta)

    def propose(args: Any, origin: Any, controls: Any, draw: Any, out: Any) -> None:
        phi, candidate = np.empty_like(origin), np.empty_like(origin)
        to_phi(args, origin, phi)
        inner(args[3], phi, controls, draw, candidate)
        to_theta(args, candidate, out)

    return piece(propose)


@cache
def scaled_ratio(inner: Piece, dense: bool) -> Piece:
    """Return the piece ``log_ratio`` of a proposal whose own one is `inner`; the Jacobian of the scale cancels."""
    to_phi = _to_phi_dense if dense else _to_phi

    def log_ratio(args: Any, origin: Any, candidate: Any) -> Any:
        first, second = np.empty_like(origin), np.empty_like(origin)
        to_phi(args, origin, first)
        to_phi(args, candidate, second)
        return inner(args[3], first, second)

    return piece(log_ratio)


@cache
def scaled_gradient_proposal(inner: Piece, dense: bool) -> Piece:
    """Return the piece ``propose`` of a proposal with gradients; those of phi are S^T times those of theta."""
    to_phi, to_theta = (_to_phi_dense, _to_theta_dense) if dense else (_to_phi, _to_theta)
    pull = _pull_dense if dense else _pull

    def propose(args: Any, origin: Any, grad: Any, controls: Any, draw: Any, out: Any) -> None:
        phi, pulled, candidate = np.empty_like(origin), np.empty_like(origin), np.empty_like(origin)
        to_phi(args, origin, phi)
        pull(args, grad, pulled)
        inner(args[3], phi, pulled, controls, draw, candidate)
        to_theta(args, candidate, out)

    return piece(propose)


@cache
def scaled_gradient_ratio(inner: Piece, dense: bool) -> Piece:
    """Return the piece ``log_ratio`` of a proposal with gradients; the Jacobian of the scale cancels."""
    to_phi = _to_phi_dense if dense else _to_phi
    pull = _pull_dense if dense else _pull

    def log_ratio(args: Any, origin: Any, candidate: Any, here: Any, there: Any, controls: Any) -> Any:
        first, second = np.empty_like(origin), np.empty_like(origin)
        grad_1, grad_2 = np.empty_like(origin), np.empty_like(origin)
        to_phi(args, origin, first)
        to_phi(args, candidate, second)
        pull(args, here, grad_1)
        pull(args, there, grad_2)
        return inner(args[3], first, second, grad_1, grad_2, controls)

    return piece(log_ratio)


@cache
def scaled_follower(inner: Callable[[Piece], Piece], dense: bool) -> Callable[[Piece], Piece]:
    """Return the `follower` of a trajectory, whose momenta are those of phi."""

    def follower(gradient: Piece) -> Piece:
        return piece_once(scaled, gradient)

    def scaled(gradient: Piece) -> Piece:
        to_phi, to_theta = (_to_phi_dense, _to_theta_dense) if dense else (_to_phi, _to_theta)
        pull = _pull_dense if dense else _pull

        @piece
        def pulled(data: Any, phi: Any, out: Any) -> None:
            args, theta, grad, of_theta = data
            to_theta(args, phi, theta)
            gradient(of_theta, theta, grad)
            pull(args, grad, out)

        inner_follow = inner(pulled)

        def follow(
            args: Any, data: Any, origin: Any, grad: Any, controls: Any, draw: Any, out: Any, momenta: Any
        ) -> Any:
            phi, here, end = np.empty_like(origin), np.empty_like(origin), np.empty_like(origin)
            theta, there = np.empty_like(origin), np.empty_like(origin)
            to_phi(args, origin, phi)
            pull(args, grad, here)
            around = (args, theta, there, data)
            path = inner_follow(args[3], around, phi, here, controls, draw, end, momenta)
            to_theta(args, end, out)
            return path

        return follow

    return follower


@cache
def scaled_trajectory_ratio(inner: Piece, dense: bool) -> Piece:
    """Return the piece ``log_ratio`` of a trajectory, whose momenta are those of phi."""
    pull = _pull_dense if dense else _pull

    def log_ratio(args: Any, path: Any, grad: Any, controls: Any) -> Any:
        pulled = np.empty_like(grad)
        pull(args, grad, pulled)
        return inner(args[3], path, pulled, controls)

    return piece(log_ratio)


@cache
def scaled_move(inner: Piece, dense: bool) -> Piece:
    """Return the piece ``move`` of a dynamics whose own one is `inner`; ``args[3]`` are its arguments."""
    to_phi, to_theta = (_to_phi_dense, _to_theta_dense) if dense else (_to_phi, _to_theta)
    pull = _pull_dense if dense else _pull

    def move(args: Any, theta: Any, grad: Any, vectors: Any, scalars: Any, controls: Any, draw: Any) -> None:
        phi, pulled = np.empty_like(theta), np.empty_like(theta)
        to_phi(args, theta, phi)
        pull(args, grad, pulled)
        inner(args[3], phi, pulled, vectors, scalars, controls, draw)
        to_theta(args, phi, theta)

    return piece(move)
