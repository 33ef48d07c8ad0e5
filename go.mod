module github.com/giveway/giveway

go 1.26
