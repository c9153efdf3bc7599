"""Rational approximations that NumPy and MLX share; `xp` stands for the array module of the target."""


def _polynomial(coefficients, x):
    """Horner's rule, highest coefficient first."""
    result = coefficients[0]
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


def _erf_and_erfc(x, exp):
    """Both error functions, by the rational approximations of W. J. Cody, Rational Chebyshev approximations for the
    error function, Mathematics of Computation 23 (1969), with the coefficients of his program CALERF (SPECFUN, 1990);
    exp must be as exact as they are to be."""
    # erfc is 0 beyond 28, where infinity would turn into NaN.
    size = xp.minimum(xp.abs(x), 28.0)
    square = size * size
    near = x * (
        _polynomial(
            (
                1.85777706184603153e-1,
                3.16112374387056560e0,
                1.13864154151050156e2,
                3.77485237685302021e2,
                3.20937758913846947e3,
            ),
            square,
        )
        / _polynomial(
            (
                1.0,
                2.36012909523441209e1,
                2.44024637934444173e2,
                1.28261652607737228e3,
                2.84423683343917062e3,
            ),
            square,
        )
    )
    middle = _polynomial(
        (
            2.15311535474403846e-8,
            5.64188496988670089e-1,
            8.88314979438837594e0,
            6.61191906371416295e1,
            2.98635138197400131e2,
            8.81952221241769090e2,
            1.71204761263407058e3,
            2.05107837782607147e3,
            1.23033935479799725e3,
        ),
        size,
    ) / _polynomial(
        (
            1.0,
            1.57449261107098347e1,
            1.17693950891312499e2,
            5.37181101862009858e2,
            1.62138957456669019e3,
            3.29079923573345963e3,
            4.36261909014324716e3,
            3.43936767414372164e3,
            1.23033935480374942e3,
        ),
        size,
    )
    inverse = 1.0 / xp.maximum(square, 1.0)
    far = _polynomial(
        (
            1.63153871373020978e-2,
            3.05326634961232344e-1,
            3.60344899949804439e-1,
            1.25781726111229246e-1,
            1.60837851487422766e-2,
            6.58749161529837803e-4,
        ),
        inverse,
    ) / _polynomial(
        (
            1.0,
            2.56852019228982242e0,
            1.87295284992346725e0,
            5.27905102951428412e-1,
            6.05183413124413191e-2,
            2.33520497626869185e-3,
        ),
        inverse,
    )
    far = (5.6418958354775628695e-1 - inverse * far) / xp.maximum(size, 1.0)
    # exp(-size²), where the rounding error of the square would count: the first factor is exact.
    head = xp.trunc(size * 16.0) / 16.0
    scale = exp(-head * head) * exp(-(size - head) * (size + head))
    tail = scale * xp.where(size <= 4.0, middle, far)
    is_near = size <= 0.46875
    erf = xp.where(is_near, near, xp.where(x < 0.0, tail - 1.0, 1.0 - tail))
    erfc = xp.where(is_near, 1.0 - near, xp.where(x < 0.0, 2.0 - tail, tail))
    return erf, erfc


def _inverse_of_erf(x):
    """Inverse of the error function: the normal quantile of M. J. Wichura, Algorithm AS 241, Applied Statistics 37
    (1988), scaled."""
    half = 0.5 * x
    r = 0.180625 - half * half
    near = half * (
        _polynomial(
            (
                2.5090809287301226727e3,
                3.3430575583588128105e4,
                6.7265770927008700853e4,
                4.5921953931549871457e4,
                1.3731693765509461125e4,
                1.9715909503065514427e3,
                1.3314166789178437745e2,
                3.3871328727963666080e0,
            ),
            r,
        )
        / _polynomial(
            (
                5.2264952788528545610e3,
                2.8729085735721942674e4,
                3.9307895800092710610e4,
                2.1213794301586595867e4,
                5.3941960214247511077e3,
                6.8718700749205790830e2,
                4.2313330701600911252e1,
                1.0,
            ),
            r,
        )
    )
    distance = 0.5 - xp.abs(half)
    r = xp.sqrt(-xp.log(distance))
    middle = _polynomial(
        (
            7.74545014278341407640e-4,
            2.27238449892691845833e-2,
            2.41780725177450611770e-1,
            1.27045825245236838258e0,
            3.64784832476320460504e0,
            5.76949722146069140550e0,
            4.63033784615654529590e0,
            1.42343711074968357734e0,
        ),
        r - 1.6,
    ) / _polynomial(
        (
            1.05075007164441684324e-9,
            5.47593808499534494600e-4,
            1.51986665636164571966e-2,
            1.48103976427480074590e-1,
            6.89767334985100004550e-1,
            1.67638483018380384940e0,
            2.05319162663775882187e0,
            1.0,
        ),
        r - 1.6,
    )
    far = _polynomial(
        (
            2.01033439929228813265e-7,
            2.71155556874348757815e-5,
            1.24266094738807843860e-3,
            2.65321895265761230930e-2,
            2.96560571828504891230e-1,
            1.78482653991729133580e0,
            5.46378491116411436990e0,
            6.65790464350110377720e0,
        ),
        r - 5.0,
    ) / _polynomial(
        (
            2.04426310338993978564e-15,
            1.42151175831644588870e-7,
            1.84631831751005468180e-5,
            7.86869131145613259100e-4,
            1.48753612908506148525e-2,
            1.36929880922735805310e-1,
            5.99832206555887937690e-1,
            1.0,
        ),
        r - 5.0,
    )
    tail = xp.where(distance == 0.0, xp.inf, xp.where(r <= 5.0, middle, far))
    quantile = xp.where(xp.abs(half) <= 0.425, near, xp.where(half < 0.0, -tail, tail))
    return quantile * 0.70710678118654752440
