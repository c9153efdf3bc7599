static MITHRIL_ONCE void @name@_lines_@rows@(long line, long channels, const float *restrict weights, const float *restrict in,
                               float *restrict products, int accumulate, const char *next, long stride)
{
    switch (line) {
    @cases@
    default:
        break;
    }
}
