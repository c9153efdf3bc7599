/* Written by Mithril. The mesh of @prefix@.h, whose ranks are processes of MPI. */
#ifndef @PREFIX@_MPI_H
#define @PREFIX@_MPI_H

#include "@prefix@.h"

#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The mesh over the processes of a communicator, which has @ranks@, in the order of their ranks. All of
   them call it. MPI must have been initialized, with MPI_THREAD_FUNNELED where calls have several threads. NULL: errno says
   why; EINVAL: the communicator has another number of processes. */
mithril_mesh *@prefix@_mpi_open(MPI_Comm processes);

/* What MPI said when it failed. */
const char *@prefix@_mpi_problem(const mithril_mesh *mesh);

void @prefix@_mpi_close(mithril_mesh *mesh);

#ifdef __cplusplus
}
#endif

#endif
