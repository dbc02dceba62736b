// etcd in the version that go.mod names, for the benchmark: Debian's is years older.
//
//	cd tools/etcd && go build -o ../../build/etcd/etcd .
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
