"""The collectives of workers by themselves, against NumPy; those of processes are in `mesh_program.py`."""

import socket
import threading

import mithril as ml
import numpy as np
import pytest
from mesh_program import check_collectives, check_special_numbers
from mithril.parallel.socket_mesh import SocketMesh


@pytest.mark.parametrize(
    "mesh", [ml.Mesh(data=1), ml.Mesh(data=3), ml.Mesh(data=2, model=2), ml.Mesh(data=2, model=1, rest=3)], ids=repr
)
def test_collectives_of_workers(mesh):
    count = mesh.devices
    sockets = [{} for _ in range(count)]
    for one in range(count):
        for other in range(one):
            sockets[one][other], sockets[other][one] = socket.socketpair()
    caught = []

    def run(rank):
        for peer in sockets[rank].values():
            peer.setblocking(False)
        try:
            communicator = SocketMesh(mesh, rank, sockets[rank])
            check_collectives(mesh, communicator, rank, np.array, np.asarray)
            with np.errstate(invalid="ignore"):
                check_special_numbers(mesh, communicator, rank, np.array, np.asarray)
        except BaseException as error:
            caught.append(error)
            for peer in sockets[rank].values():
                peer.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for peers in sockets:
        for peer in peers.values():
            peer.close()
    if caught:
        raise caught[0]
