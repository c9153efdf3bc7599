/* What a run can return besides 0. */
enum {
    MITHRIL_ERROR_INDEX = 1,      /* an index lies outside its axis */
    MITHRIL_ERROR_SINGULAR = 2,   /* a matrix to be inverted is singular */
    MITHRIL_ERROR_INDEFINITE = 3, /* a matrix to be decomposed is not positive definite */
    MITHRIL_ERROR_ARGUMENT = 5,   /* a pointer is missing, not aligned, or overlaps another */
};

/* The code of a call by its number, for the text that says where it failed. */
static inline int mithril_failed(int code, int call) { return code ? code + 16 * call : 0; }
