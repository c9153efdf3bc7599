/* What a run of a program that is divided over a mesh can return besides. */
enum { MITHRIL_ERROR_MESH = 6 };

/* The first of two codes that is not 0. */
static inline int mithril_first(int code, int next) { return code ? code : next; }

/* Whether the mesh is one of these sizes. */
static inline bool mithril_is_mesh(const mithril_mesh *mesh, const int *sizes, int axes) {
    return mesh && mesh->axes == axes && memcmp(mesh->sizes, sizes, (size_t)axes * sizeof *sizes) == 0;
}

/* The largest code of all ranks, so that none goes on where another one has failed. */
static inline int mithril_agreed(const mithril_mesh *mesh, int code) {
    for (int axis = 0; axis < mesh->axes; axis++) {
        const int32_t own = code;
        int32_t all = 0;
        if (mesh->all_reduce((mithril_mesh *)mesh, axis, &own, &all, 1, MITHRIL_INT32, MITHRIL_MAX))
            return mithril_first(code, MITHRIL_ERROR_MESH);
        code = all;
    }
    return code;
}

/* The sum, maximum or minimum over the ranks along an axis of the mesh. */
static inline int mithril_all_reduce(const mithril_mesh *mesh, int axis, const void *in, void *out, int64_t count,
        int dtype, int reduction) {
    if (count == 0) return 0;
    mithril_mesh *const self = (mithril_mesh *)mesh;
    return self->all_reduce(self, axis, in, out, (size_t)count, dtype, reduction) ? MITHRIL_ERROR_MESH : 0;
}

/* The blocks of all ranks along an axis of the mesh, in their order. */
static inline int mithril_all_gather(const mithril_mesh *mesh, int axis, const void *in, void *out, int64_t bytes) {
    if (bytes == 0) return 0;
    mithril_mesh *const self = (mithril_mesh *)mesh;
    return self->all_gather(self, axis, in, out, (size_t)bytes) ? MITHRIL_ERROR_MESH : 0;
}

/* The block of this rank of what the ranks along an axis of the mesh add up. */
static inline int mithril_reduce_scatter(const mithril_mesh *mesh, int axis, const void *in, void *out, int64_t count,
        int dtype, int reduction) {
    if (count == 0) return 0;
    mithril_mesh *const self = (mithril_mesh *)mesh;
    return self->reduce_scatter(self, axis, in, out, (size_t)count, dtype, reduction) ? MITHRIL_ERROR_MESH : 0;
}

/* Sends each rank along an axis of the mesh its block; those that all of them send to this one. */
static inline int mithril_all_to_all(const mithril_mesh *mesh, int axis, const void *in, void *out, int64_t bytes) {
    if (bytes == 0) return 0;
    mithril_mesh *const self = (mithril_mesh *)mesh;
    return self->all_to_all(self, axis, in, out, (size_t)bytes) ? MITHRIL_ERROR_MESH : 0;
}

/* Sends a tensor from place to place along an axis of the mesh: for each place, where to, and from where; -1: nowhere. */
static inline int mithril_permute(const mithril_mesh *mesh, int axis, const void *in, void *out, int64_t bytes,
        const int64_t *to, const int64_t *from) {
    if (bytes == 0) return 0;
    mithril_mesh *const self = (mithril_mesh *)mesh;
    const int place = self->places[axis];
    if (from[place] < 0) memset(out, 0, (size_t)bytes);
    if (from[place] == place) {
        memcpy(out, in, (size_t)bytes);
        return 0;
    }
    if (from[place] < 0 && to[place] < 0) return 0;
    return self->permute(self, axis, in, out, (size_t)bytes, (int)to[place], (int)from[place]) ? MITHRIL_ERROR_MESH : 0;
}

/* The part of this rank along an axis of the mesh of a tensor that all have: one of so many blocks, each time. */
static inline void mithril_shard(const mithril_mesh *mesh, int axis, const void *in, void *out, int64_t times,
        int64_t blocks, int64_t bytes) {
    const char *from = (const char *)in + mesh->places[axis] * bytes;
    for (int64_t i = 0; i < times && bytes > 0; i++)
        memcpy((char *)out + i * bytes, from + i * blocks * bytes, (size_t)bytes);
}

/* The place of this rank along an axis of the mesh. */
static inline void mithril_mesh_index(const mithril_mesh *mesh, int axis, int64_t *out) { *out = mesh->places[axis]; }
