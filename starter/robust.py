"""Linear regression with Student's t errors, which a few odd rows do not lead astray."""

from torch.distributions import Normal, StudentT


def log_lik(theta, rows):
    """Return the log-likelihood of each datum (m,)."""
    mean = theta.intercept + rows.x @ theta.slopes
    return StudentT(4.0, mean, theta.log_scale.exp()).log_prob(rows.y)


def log_prior(theta):
    """Return the log-density of the prior: one number."""
    wide, narrow = Normal(0.0, 2.0), Normal(0.0, 1.0)
    return (
        wide.log_prob(theta.slopes).sum() + wide.log_prob(theta.intercept) + narrow.log_prob(theta.log_scale)
    )
