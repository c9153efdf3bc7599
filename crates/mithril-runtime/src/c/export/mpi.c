/* Written by Mithril. The mesh of @prefix@.h, whose ranks are processes of MPI: a communicator for each axis of the mesh.
   Needs MPI 2.2. */
#include "@prefix@_mpi.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The largest count that functions of MPI are given: larger tensors are exchanged in pieces. */
#ifndef MITHRIL_MPI_COUNT
#define MITHRIL_MPI_COUNT INT_MAX
#endif

enum { @prefix@_AXES = @PREFIX@_MESH_AXES };

typedef struct {
    mithril_mesh mesh; /* first: its address is that of the mesh */
    int sizes[@prefix@_AXES], places[@prefix@_AXES];
    MPI_Comm all, along[@prefix@_AXES];
    MPI_Op max, min;
    int problem; /* of the first function that failed */
    char message[MPI_MAX_ERROR_STRING + 1];
} @prefix@_mpi;

static const MPI_Datatype *@prefix@_types(void) {
    static MPI_Datatype types[10];
    types[MITHRIL_INT8] = MPI_INT8_T;
    types[MITHRIL_UINT8] = MPI_UINT8_T;
    types[MITHRIL_INT16] = MPI_INT16_T;
    types[MITHRIL_UINT16] = MPI_UINT16_T;
    types[MITHRIL_INT32] = MPI_INT32_T;
    types[MITHRIL_UINT32] = MPI_UINT32_T;
    types[MITHRIL_INT64] = MPI_INT64_T;
    types[MITHRIL_UINT64] = MPI_UINT64_T;
    types[MITHRIL_FLOAT32] = MPI_FLOAT;
    types[MITHRIL_FLOAT64] = MPI_DOUBLE;
    return types;
}

static size_t @prefix@_item(int dtype) {
    static const size_t bytes[] = {1, 1, 2, 2, 4, 4, 8, 8, 4, 8};
    return bytes[dtype];
}

/* Maxima and minima of floats: NaN if one is, which those of MPI may lose. */
static void @prefix@_extreme(const void *in, void *inout, int count, int is_double, int sign) {
    for (int i = 0; i < count; i++) {
        if (is_double) {
            const double a = ((const double *)in)[i];
            double *b = (double *)inout + i;
            if (a != a || (sign > 0 ? a > *b : a < *b)) *b = a;
        } else {
            const float a = ((const float *)in)[i];
            float *b = (float *)inout + i;
            if (a != a || (sign > 0 ? a > *b : a < *b)) *b = a;
        }
    }
}

static void @prefix@_max(void *in, void *inout, int *count, MPI_Datatype *type) {
    @prefix@_extreme(in, inout, *count, *type == MPI_DOUBLE, 1);
}

static void @prefix@_min(void *in, void *inout, int *count, MPI_Datatype *type) {
    @prefix@_extreme(in, inout, *count, *type == MPI_DOUBLE, -1);
}

static MPI_Op @prefix@_op(const @prefix@_mpi *own, int dtype, int reduction) {
    const int is_float = dtype == MITHRIL_FLOAT32 || dtype == MITHRIL_FLOAT64;
    if (reduction == MITHRIL_MAX) return is_float ? own->max : MPI_MAX;
    if (reduction == MITHRIL_MIN) return is_float ? own->min : MPI_MIN;
    return MPI_SUM;
}

/* Remembers the first code that is not that of success, after which nothing is exchanged any more. */
static int @prefix@_judge(@prefix@_mpi *own, int code) {
    if (code == MPI_SUCCESS || own->problem) return own->problem;
    int length = 0;
    if (MPI_Error_string(code, own->message, &length) != MPI_SUCCESS) own->message[0] = 0;
    return own->problem = code;
}

/* How many of so many things are in the next piece. */
static int @prefix@_piece(size_t left) { return left < MITHRIL_MPI_COUNT ? (int)left : MITHRIL_MPI_COUNT; }

static int @prefix@_all_reduce(mithril_mesh *mesh, int axis, const void *in, void *out, size_t count, int dtype,
        int reduction) {
    @prefix@_mpi *own = (@prefix@_mpi *)mesh;
    const MPI_Datatype type = @prefix@_types()[dtype];
    const MPI_Op op = @prefix@_op(own, dtype, reduction);
    const size_t item = @prefix@_item(dtype);
    for (size_t at = 0; at < count && !own->problem;) {
        const int piece = @prefix@_piece(count - at);
        /* MPI before version 3 does not say that it only reads the first argument. */
        @prefix@_judge(own, MPI_Allreduce((char *)in + at * item, (char *)out + at * item, piece, type, op, own->along[axis]));
        at += (size_t)piece;
    }
    return own->problem;
}

static int @prefix@_reduce_scatter(mithril_mesh *mesh, int axis, const void *in, void *out, size_t count, int dtype,
        int reduction) {
    @prefix@_mpi *own = (@prefix@_mpi *)mesh;
    const MPI_Datatype type = @prefix@_types()[dtype];
    const MPI_Op op = @prefix@_op(own, dtype, reduction);
    const MPI_Comm along = own->along[axis];
    const size_t item = @prefix@_item(dtype);
    if (own->problem) return own->problem;
    if (count <= MITHRIL_MPI_COUNT)
        return @prefix@_judge(own, MPI_Reduce_scatter_block((void *)in, out, (int)count, type, op, along));
    for (int place = 0; place < own->sizes[axis]; place++) {
        for (size_t at = 0; at < count && !own->problem;) {
            const int piece = @prefix@_piece(count - at);
            char *from = (char *)in + ((size_t)place * count + at) * item;
            @prefix@_judge(own, MPI_Reduce(from, (char *)out + at * item, piece, type, op, place, along));
            at += (size_t)piece;
        }
    }
    return own->problem;
}

/* Sends bytes to the process at one place and receives as many from that at another, in pieces; -1: none. */
static int @prefix@_send_receive(@prefix@_mpi *own, int axis, const char *in, char *out, size_t bytes, int to, int from) {
    for (size_t at = 0; at < bytes && !own->problem;) {
        const int piece = @prefix@_piece(bytes - at), send_to = to < 0 ? MPI_PROC_NULL : to;
        const int receive_from = from < 0 ? MPI_PROC_NULL : from;
        @prefix@_judge(own, MPI_Sendrecv((char *)in + at, piece, MPI_BYTE, send_to, 0, out + at, piece, MPI_BYTE,
                receive_from, 0, own->along[axis], MPI_STATUS_IGNORE));
        at += (size_t)piece;
    }
    return own->problem;
}

/* As all_gather or all_to_all, for blocks that are too large for the functions of MPI; `distance` is that of two blocks. */
static int @prefix@_exchange(@prefix@_mpi *own, int axis, const char *in, size_t distance, char *out, size_t bytes) {
    const int size = own->sizes[axis], place = own->places[axis];
    for (int step = 0; step < size && !own->problem; step++) {
        const int to = (place + step) % size, from = (place + size - step) % size;
        @prefix@_send_receive(own, axis, in + (size_t)to * distance, out + (size_t)from * bytes, bytes, to, from);
    }
    return own->problem;
}

static int @prefix@_all_gather(mithril_mesh *mesh, int axis, const void *in, void *out, size_t bytes) {
    @prefix@_mpi *own = (@prefix@_mpi *)mesh;
    if (own->problem) return own->problem;
    if (bytes > MITHRIL_MPI_COUNT) return @prefix@_exchange(own, axis, in, 0, out, bytes);
    return @prefix@_judge(own,
            MPI_Allgather((void *)in, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, own->along[axis]));
}

static int @prefix@_all_to_all(mithril_mesh *mesh, int axis, const void *in, void *out, size_t bytes) {
    @prefix@_mpi *own = (@prefix@_mpi *)mesh;
    if (own->problem) return own->problem;
    if (bytes > MITHRIL_MPI_COUNT) return @prefix@_exchange(own, axis, in, bytes, out, bytes);
    return @prefix@_judge(own,
            MPI_Alltoall((void *)in, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, own->along[axis]));
}

static int @prefix@_permute(mithril_mesh *mesh, int axis, const void *in, void *out, size_t bytes, int to, int from) {
    return @prefix@_send_receive((@prefix@_mpi *)mesh, axis, in, out, bytes, to, from);
}

/* Makes the communicators. */
static int @prefix@_connect(@prefix@_mpi *own, MPI_Comm processes) {
    int count = 0, rank = 0;
    if (@prefix@_judge(own, MPI_Comm_dup(processes, &own->all))) return EIO;
    MPI_Comm_set_errhandler(own->all, MPI_ERRORS_RETURN);
    MPI_Comm_size(own->all, &count);
    MPI_Comm_rank(own->all, &rank);
    if (count != @PREFIX@_RANKS) return EINVAL;
    for (int axis = @prefix@_AXES - 1, rest = rank; axis >= 0; axis--) {
        own->places[axis] = rest % own->sizes[axis];
        rest /= own->sizes[axis];
    }
    for (int axis = 0, before = 1; axis < @prefix@_AXES; axis++) {
        before *= own->sizes[axis];
        /* The rank of the first one of its group. */
        const int first = rank - own->places[axis] * (@PREFIX@_RANKS / before);
        if (@prefix@_judge(own, MPI_Comm_split(own->all, first, own->places[axis], &own->along[axis]))) return EIO;
        MPI_Comm_set_errhandler(own->along[axis], MPI_ERRORS_RETURN);
    }
    if (@prefix@_judge(own, MPI_Op_create(@prefix@_max, 1, &own->max))) return EIO;
    return @prefix@_judge(own, MPI_Op_create(@prefix@_min, 1, &own->min)) ? EIO : 0;
}

mithril_mesh *@prefix@_mpi_open(MPI_Comm processes) {
    static const int sizes[] = @PREFIX@_MESH_SIZES;
    @prefix@_mpi *own = calloc(1, sizeof *own);
    if (!own) {
        errno = ENOMEM;
        return NULL;
    }
    memcpy(own->sizes, sizes, sizeof own->sizes);
    own->all = MPI_COMM_NULL;
    for (int axis = 0; axis < @prefix@_AXES; axis++) own->along[axis] = MPI_COMM_NULL;
    own->max = own->min = MPI_OP_NULL;
    own->mesh.axes = @prefix@_AXES;
    own->mesh.sizes = own->sizes;
    own->mesh.places = own->places;
    own->mesh.all_reduce = @prefix@_all_reduce;
    own->mesh.all_gather = @prefix@_all_gather;
    own->mesh.reduce_scatter = @prefix@_reduce_scatter;
    own->mesh.all_to_all = @prefix@_all_to_all;
    own->mesh.permute = @prefix@_permute;
    const int problem = @prefix@_connect(own, processes);
    if (!problem) return &own->mesh;
    @prefix@_mpi_close(&own->mesh);
    errno = problem;
    return NULL;
}

const char *@prefix@_mpi_problem(const mithril_mesh *mesh) { return ((const @prefix@_mpi *)mesh)->message; }

void @prefix@_mpi_close(mithril_mesh *mesh) {
    if (!mesh) return;
    @prefix@_mpi *own = (@prefix@_mpi *)mesh;
    if (own->max != MPI_OP_NULL) MPI_Op_free(&own->max);
    if (own->min != MPI_OP_NULL) MPI_Op_free(&own->min);
    for (int axis = 0; axis < @prefix@_AXES; axis++)
        if (own->along[axis] != MPI_COMM_NULL) MPI_Comm_free(&own->along[axis]);
    if (own->all != MPI_COMM_NULL) MPI_Comm_free(&own->all);
    free(own);
}
