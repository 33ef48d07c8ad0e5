package server

import (
	"errors"
	"fmt"
	"net/http"
)

// statusError is an error that is answered with a status of its own.
type statusError struct {
	status int
	error
}

func (e statusError) Unwrap() error { return e.error }

// BadRequest returns an error that is answered with status 400: the request is invalid.
func BadRequest(format string, args ...any) error {
	return statusError{http.StatusBadRequest, fmt.Errorf(format, args...)}
}

// Forbidden returns an error that is answered with status 403: the caller may not do it.
func Forbidden(format string, args ...any) error {
	return statusError{http.StatusForbidden, fmt.Errorf(format, args...)}
}

// NotFound returns an error that is answered with status 404: there is no such process,
// device or path.
func NotFound(format string, args ...any) error {
	return statusError{http.StatusNotFound, fmt.Errorf(format, args...)}
}

// Conflict returns an error that is answered with status 409: it is not possible here or
// not possible now.
func Conflict(format string, args ...any) error {
	return statusError{http.StatusConflict, fmt.Errorf(format, args...)}
}

// TooMany returns an error that is answered with status 429: the caller makes too many
// requests, or has as many of something as it may. The audit has a line for it.
func TooMany(format string, args ...any) error {
	return statusError{http.StatusTooManyRequests, fmt.Errorf(format, args...)}
}

// Unavailable returns an error that is answered with status 503: the daemon ends, and the next one
// may do it.
func Unavailable(format string, args ...any) error {
	return statusError{http.StatusServiceUnavailable, fmt.Errorf(format, args...)}
}

// IsLimit reports whether an error comes from TooMany.
func IsLimit(err error) bool { return statusOf(err) == http.StatusTooManyRequests }

// errClosed refuses a request whose connection was closed before it was answered.
var errClosed = NotFound("the connection is closed")

// statusOf returns the status that an error is answered with.
func statusOf(err error) int {
	var s statusError
	switch {
	case errors.Is(err, errNoToken):
		return http.StatusUnauthorized
	case errors.As(err, new(*http.MaxBytesError)):
		return http.StatusRequestEntityTooLarge
	case errors.As(err, &s):
		return s.status
	}
	return http.StatusInternalServerError
}
