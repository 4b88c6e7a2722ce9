// MINT and MHminibatch on the mixture as one would write them by hand in C++: see problem.py and problem_growing.py.
//
// One thread, data in single precision, terms in single (MINT) and double precision (MHminibatch) as in mhrun, Philox4x32-10
// for all random numbers, every draw and statistic written to arrays in memory. Minibatches are drawn with replacement.
// cpp_loops.py builds it with -O3 -march=native -ffast-math.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

constexpr int TILE = 1024;

struct Words {
    uint32_t a, b, c, d;
};

inline Words philox(uint32_t block, uint32_t step, uint32_t purpose, uint32_t chain, uint32_t seed) {
    uint32_t c0 = block, c1 = step, c2 = purpose, c3 = chain, k0 = seed, k1 = 0;
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
        const uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ k0, n2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
        c1 = uint32_t(p1);
        c3 = uint32_t(p0);
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {c0, c1, c2, c3};
}

inline double uniform(uint32_t word) { return (word + 0.5) * 0x1p-32; }

struct Pair {
    double x, y;
};

inline Pair normals(uint32_t a, uint32_t b) {
    const double r = std::sqrt(-2 * std::log(uniform(a))), t = 2 * M_PI * uniform(b);
    return {r * std::cos(t), r * std::sin(t)};
}

enum Purpose : uint32_t { INDEX, MOVE, DECIDE };

// Indices of data `first` to `first + m` of a step's minibatch, independent and uniform; m rounded up to a multiple of 4.
inline void draw(uint32_t n, int first, int m, uint32_t step, uint32_t chain, uint32_t seed, int32_t* index) {
    const int blocks = (m + 3) / 4;
    for (int j = 0; j < blocks; ++j) {  // in quarters: stores side by side are vectorised
        const Words w = philox(uint32_t(first / 4 + j), step, INDEX, chain, seed);
        index[j] = int32_t((uint64_t(w.a) * n) >> 32);
        index[blocks + j] = int32_t((uint64_t(w.b) * n) >> 32);
        index[2 * blocks + j] = int32_t((uint64_t(w.c) * n) >> 32);
        index[3 * blocks + j] = int32_t((uint64_t(w.d) * n) >> 32);
    }
}

inline void fetch(const float* x, uint32_t n, int first, int m, uint32_t step, uint32_t chain, uint32_t seed, float* rows) {
    static int32_t index[TILE + 4];
    draw(n, first, m, step, chain, seed, index);
    for (int j = 0; j < m; ++j) rows[j] = x[index[j]];
}

struct Target {
    double v, s1, s2;
    double log_prior(const double* theta) const {
        return -0.5 * (theta[0] * theta[0] / s1 + theta[1] * theta[1] / s2);
    }
};

struct Sums {
    double one = 0, two = 0, three = 0;
};

// Sums of the terms' first powers about `shift`. log N1 is linear in x, the rest is a difference of softplus(s x + t).
template <typename Real, bool THIRD>
inline Sums difference(const Target& target, const float* rows, int m, const double* origin, const double* to, Real shift) {
    const double v = target.v;
    const Real grad = Real((to[0] - origin[0]) / v), level = Real((origin[0] * origin[0] - to[0] * to[0]) / (2 * v));
    const Real s = Real(origin[1] / v), t = Real(-origin[1] * (origin[0] + 0.5 * origin[1]) / v);
    const Real r = Real(to[1] / v), u = Real(-to[1] * (to[0] + 0.5 * to[1]) / v);
    Real one = 0, two = 0, three = 0;
    for (int j = 0; j < m; ++j) {
        const Real x = rows[j], before = s * x + t, after = r * x + u;
        Real d = grad * x + level + std::max(after, Real(0)) - std::max(before, Real(0)) - shift;
        d += std::log((1 + std::exp(-std::abs(after))) / (1 + std::exp(-std::abs(before))));
        one += d;
        two += d * d;
        if (THIRD) three += d * d * d;
    }
    return {one, two, three};
}

}  // namespace

extern "C" {

struct Problem {
    const float* x;
    int64_t n;
    int32_t m, chains, steps;
    uint32_t seed;
    double variance, prior1, prior2, step_size, scale, prior_power;
    const double *probabilities, *points;  // MHminibatch: quantiles of the correction
    int32_t quantiles;
    double sigma2, noise_share, growth;
};

// theta (C, K, 2), accepted, log_ratio, variance, size (C, K).
void mint(const Problem* p, double* theta, uint8_t* accepted, double* log_ratio, double* variance) {
    const Target target{p->variance, p->prior1, p->prior2};
    std::vector<float> rows(TILE);
    for (int c = 0; c < p->chains; ++c) {
        double current[2] = {0, 1}, prior = target.log_prior(current);
        for (int k = 0; k < p->steps; ++k) {
            const Words w = philox(0, k, MOVE, c, p->seed), u = philox(0, k, DECIDE, c, p->seed);
            const Pair z = normals(w.a, w.b);
            const double to[2] = {current[0] + p->step_size * z.x, current[1] + p->step_size * z.y};
            const double new_prior = target.log_prior(to);
            Sums sums;
            for (int first = 0; first < p->m; first += TILE) {
                const int size = std::min(TILE, p->m - first);
                fetch(p->x, uint32_t(p->n), first, size, k, c, p->seed, rows.data());
                const Sums part = difference<float, false>(target, rows.data(), size, current, to, 0.f);
                sums.one += part.one;
                sums.two += part.two;
            }
            const double mean = sums.one / p->m, var = (sums.two - sums.one * mean) / (p->m - 1);
            const double ratio = p->prior_power * (new_prior - prior) + p->scale * mean;
            const bool accept = std::log(uniform(u.a)) < ratio;
            if (accept) {
                current[0] = to[0];
                current[1] = to[1];
                prior = new_prior;
            }
            const int64_t at = int64_t(c) * p->steps + k;
            theta[2 * at] = current[0];
            theta[2 * at + 1] = current[1];
            accepted[at] = accept;
            log_ratio[at] = ratio;
            variance[at] = p->scale * p->scale * var / p->m;
        }
    }
}

// A pilot of m data fixes the size b = m growth^k of a fresh minibatch, whose variance is combined with the pilot's.
void mh_minibatch(const Problem* p, double* theta, uint8_t* accepted, double* log_ratio, double* variance, int32_t* read) {
    const Target target{p->variance, p->prior1, p->prior2};
    std::vector<float> rows(TILE);
    for (int c = 0; c < p->chains; ++c) {
        double current[2] = {0, 1}, prior = target.log_prior(current);
        for (int k = 0; k < p->steps; ++k) {
            const Words w = philox(0, k, MOVE, c, p->seed), u = philox(0, k, DECIDE, c, p->seed);
            const Pair z = normals(w.a, w.b), noise = normals(u.a, u.b);
            const double to[2] = {current[0] + p->step_size * z.x, current[1] + p->step_size * z.y};
            const double new_prior = target.log_prior(to);
            const int pilot = p->m;
            fetch(p->x, uint32_t(p->n), 0, pilot, k, c, p->seed, rows.data());
            const Sums tried = difference<double, true>(target, rows.data(), pilot, current, to, 0.0);
            const double about = tried.one / pilot;
            const double pilot_var = (tried.two - tried.one * about) / (pilot - 1), scale2 = p->scale * p->scale;
            const double needed = scale2 * pilot_var / (p->noise_share * p->sigma2);
            int size = p->m;
            while (size < needed && size < p->n) size = std::max(size + 1, int(std::ceil(size * p->growth)));
            Sums sums;
            for (int done = 0; done < size; done += TILE) {  // the pilot has the first blocks of random numbers
                const int part = std::min(TILE, size - done);
                fetch(p->x, uint32_t(p->n), (pilot + 3) / 4 * 4 + done, part, k, c, p->seed, rows.data());
                const Sums more = difference<double, true>(target, rows.data(), part, current, to, about);
                sums.one += more.one;
                sums.two += more.two;
                sums.three += more.three;
            }
            const double mean = about + sums.one / size, var = (sums.two - sums.one * sums.one / size) / (size - 1);
            const double own = (1 + double(size) / p->n) / 3, rest = 1 - double(size) / p->n;
            const double s2 = scale2 * (own * var + (1 - own) * pilot_var) / size * rest;
            const double ratio = p->prior_power * (new_prior - prior) + p->scale * mean;
            const double* at_most = std::lower_bound(p->probabilities, p->probabilities + p->quantiles, uniform(u.c));
            const int64_t upper = std::clamp<int64_t>(at_most - p->probabilities, 1, p->quantiles - 1);
            const double low = p->probabilities[upper - 1], share = (uniform(u.c) - low) / (p->probabilities[upper] - low);
            const double correction = p->points[upper - 1] + share * (p->points[upper] - p->points[upper - 1]);
            const bool accept = ratio + std::sqrt(std::max(p->sigma2 - s2, 0.0)) * noise.x + correction > 0;
            if (accept) {
                current[0] = to[0];
                current[1] = to[1];
                prior = new_prior;
            }
            const int64_t at = int64_t(c) * p->steps + k;
            theta[2 * at] = current[0];
            theta[2 * at + 1] = current[1];
            accepted[at] = accept;
            log_ratio[at] = ratio;
            variance[at] = s2;
            read[at] = pilot + size;
        }
    }
}

// Parts of a MINT step for a profile: 0 indices, 1 indices and rows, 2 all terms. Returns a sum, so that none is left out.
double parts(const Problem* p, int32_t what) {
    const Target target{p->variance, p->prior1, p->prior2};
    const double origin[2] = {0, 1}, to[2] = {0.1, 0.9};
    std::vector<float> rows(TILE);
    static int32_t index[TILE + 4];
    double sum = 0;
    for (int c = 0; c < p->chains; ++c)
        for (int k = 0; k < p->steps; ++k)
            for (int first = 0; first < p->m; first += TILE) {
                const int size = std::min(TILE, p->m - first);
                if (what == 0) {
                    draw(uint32_t(p->n), first, size, k, c, p->seed, index);
                    sum += index[size - 1];
                    continue;
                }
                fetch(p->x, uint32_t(p->n), first, size, k, c, p->seed, rows.data());
                if (what == 1)
                    for (int j = 0; j < size; ++j) sum += rows[j];
                else
                    sum += difference<float, false>(target, rows.data(), size, origin, to, 0.f).one;
            }
    return sum;
}
}
